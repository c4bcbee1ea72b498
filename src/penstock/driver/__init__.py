"""How a round trip reaches the server."""
