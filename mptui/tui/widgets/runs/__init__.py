"""The list of runs, and what runs are compared by."""
