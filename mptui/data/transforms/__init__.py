"""Views of arrays: crops, resizing, color, noise."""
