"""The panels and charts of the screens."""
