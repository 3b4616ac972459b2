"""Killing and damaging runs on purpose."""
