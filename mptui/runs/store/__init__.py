"""A run's directory: lock, journal, index, summary, environment."""
