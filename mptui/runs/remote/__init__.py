"""Runs of other processes: control socket, attaching, detaching."""
