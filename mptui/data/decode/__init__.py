"""Decodes image files and masks."""
