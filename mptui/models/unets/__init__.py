"""The U-Nets."""
