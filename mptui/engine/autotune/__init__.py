"""Settings chosen by measurement."""
