"""What every noun stands on."""
