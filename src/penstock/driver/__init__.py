"""How a script call reaches the server. Only this folder waits, and only this folder names a client library."""
