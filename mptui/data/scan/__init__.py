"""Looks at every file of a set before the first epoch, and caches what it finds."""
