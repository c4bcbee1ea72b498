"""Tally of what comes through a channel of files, exact whatever dies."""
