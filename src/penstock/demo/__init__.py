"""The demo: processes a web access log through a queue while one client floods the queue."""
