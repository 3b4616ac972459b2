"""Makes prepared sets."""
