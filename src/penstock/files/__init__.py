"""Files of any size, to many receivers, through a fixed window in the server."""
