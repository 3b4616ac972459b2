"""Experiment trackers, fed with the scalars of a run's events; `mptui.registry.trackers` lists them."""
