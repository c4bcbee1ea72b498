"""Locks, semaphores, rate limits and transactions."""
