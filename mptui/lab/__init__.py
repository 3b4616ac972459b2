"""Experiments on top of runs."""
