"""The cockpit of a mixed-precision training run."""

__version__ = "0.1.0"
