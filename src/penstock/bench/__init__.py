"""`penstock bench`: the cost of each operation, beside bare round trips."""
