"""Transforms of images and masks: crops, resizing, color, noise."""
