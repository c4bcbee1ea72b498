"""What every noun (queue, lock, channel, …) uses: operations, scripts, keys, ids, slots and the renewal of leases."""
