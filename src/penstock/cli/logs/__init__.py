"""`penstock logs count`: counts access logs in several processes."""
