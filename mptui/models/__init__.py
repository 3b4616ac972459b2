"""The networks by name, and loading of initial weights."""
