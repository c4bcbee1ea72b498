"""The checks of `penstock doctor`, a module for each subject; `doctor.py` runs them."""
