"""What the screens of settings share, and the settings of a running run."""
