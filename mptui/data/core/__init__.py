"""Types, batches and random numbers shared by the modules of `mptui.data`."""
