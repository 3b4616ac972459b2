"""The chart: plotting, axes, canvas, cursor."""
