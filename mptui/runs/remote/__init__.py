"""A run of another process: control socket, attaching, detaching."""
