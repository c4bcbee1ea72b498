"""The base of every noun (queue, lock, channel, …): operations, scripts, keys, ids, slots and the renewal of leases."""
