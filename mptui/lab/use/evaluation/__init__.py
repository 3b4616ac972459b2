"""Measures a trained run on a set, and names its worst samples."""
