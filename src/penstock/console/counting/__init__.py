"""Logs counted in one go: a process that sends, some that count, and who looks after them."""
