"""`penstock bench`: measures the cost of each operation, compared with bare round trips."""
