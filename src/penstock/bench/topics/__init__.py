"""The topics of the bench, one module each, with its `TOPIC`."""
