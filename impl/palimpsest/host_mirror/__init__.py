"""The host mirror: KV rows of sparse attention in a pinned host pool that the local ranks share."""
