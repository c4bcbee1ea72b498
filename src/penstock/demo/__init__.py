"""The main job, on show: a web access log through the queue while one client floods it."""
