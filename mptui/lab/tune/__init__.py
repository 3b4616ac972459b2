"""Searches for the fastest settings for a machine, a model and its data."""
