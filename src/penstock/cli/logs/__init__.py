"""`penstock logs count`: counts access logs, in this process or in several."""
