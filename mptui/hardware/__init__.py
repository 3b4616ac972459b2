"""The machine: its devices, their load and capabilities, and recommended settings."""
