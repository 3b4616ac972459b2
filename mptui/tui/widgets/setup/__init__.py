"""The widgets of the first two screens."""
