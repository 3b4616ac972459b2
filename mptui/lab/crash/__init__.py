"""Kills and damages runs on purpose, to test their recovery."""
