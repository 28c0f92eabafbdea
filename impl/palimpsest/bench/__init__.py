"""What the cache costs beside the copies that its work cannot do without: workloads, floors, and their report."""
