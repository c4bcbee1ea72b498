"""How a script call reaches the server. Only this folder does its I/O and imports a client library."""
