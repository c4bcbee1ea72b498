"""Files of any size, sent to many receivers through a fixed amount of memory in the server."""
