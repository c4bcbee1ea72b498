"""A server of one's own."""
