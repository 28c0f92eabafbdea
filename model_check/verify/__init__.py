"""Every kind of evidence in one run, and one report of it."""
