"""Experiment trackers, which log the scalars of a run's events; `mptui.registry.trackers` lists them."""
