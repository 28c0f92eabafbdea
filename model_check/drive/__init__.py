"""From the specification to the code: what TLC reaches is driven through the package's own threads, step by step."""
