"""Mailboxes, chats, and the log that both are."""
