"""`penstock logs count`."""
