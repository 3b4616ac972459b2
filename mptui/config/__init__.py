"""The configuration of a run: the schema of profiles, finding and checking them, merging settings."""
