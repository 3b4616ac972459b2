"""Converts datasets to prepared sets."""
