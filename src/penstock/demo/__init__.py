"""The demo: a web access log goes through the queue while one client floods it."""
