"""The view of a run for screens and consoles, computed from its events."""
