"""Checks every file of a set before the first epoch, and caches the result."""
