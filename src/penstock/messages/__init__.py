"""Mailboxes and chats, and the log that both are built on."""
