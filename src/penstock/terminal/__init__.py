"""What the command line, the bench and the demo show on a terminal."""
