"""Exact counts of the lines that come through a channel of files."""
