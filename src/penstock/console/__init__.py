"""Who looks in: the command line, and what stands behind it."""
