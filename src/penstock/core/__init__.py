"""What every noun uses: operations, scripts, keys, ids, slots and the renewal of leases."""
