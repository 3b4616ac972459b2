"""Checks every file of a dataset before the first epoch, and caches the result."""
