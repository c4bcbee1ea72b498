"""Contacts and directories: completion of names while a user types them."""
