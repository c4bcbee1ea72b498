"""Topics of the bench for developers of Penstock: see ../own.py."""
