"""Workers: programs that claim jobs from queues, run them, and settle them."""
