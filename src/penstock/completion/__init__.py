"""Contacts and directories: names completed as they are typed."""
