"""Widgets that show pictures, and what a network predicts of them."""
