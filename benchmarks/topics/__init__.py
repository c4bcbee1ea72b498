"""What developers of Penstock measure: see ../own.py."""
