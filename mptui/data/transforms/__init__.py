"""Arrays to what the network sees: crops, resizing, color, noise."""
