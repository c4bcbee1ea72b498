"""The checks of `penstock doctor`, one module per subject; `doctor.py` runs them."""
