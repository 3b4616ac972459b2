"""`mptui export`: a trained network as a file for use elsewhere, checked against the run."""
