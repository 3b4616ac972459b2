"""Figures of steps: read late from the device, aggregated, explained."""
