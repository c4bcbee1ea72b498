"""What can be called: pure values, no server."""
