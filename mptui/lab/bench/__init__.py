"""Ablations: the effect of each setting, measured in alternating rounds."""
