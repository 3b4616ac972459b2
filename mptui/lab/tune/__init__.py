"""The search for the settings that suit a machine, a model and its data."""
