"""What a run is told: the schema of a profile, where profiles are found, how values are merged."""
