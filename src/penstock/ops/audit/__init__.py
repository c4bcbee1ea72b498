"""Reads back what is kept in the server and compares it with itself."""
