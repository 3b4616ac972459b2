"""Pictures of validations in the run directory."""
