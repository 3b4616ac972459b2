"""The panels of the live screen."""
