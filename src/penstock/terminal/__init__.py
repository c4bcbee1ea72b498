"""Shared by the command line, the bench and the demo: tables, progress, signals, and input files."""
