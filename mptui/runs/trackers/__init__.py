"""Experiment trackers, fed from the journal of a run by a process of their own.

`mptui.registry.trackers` lists them.
"""
