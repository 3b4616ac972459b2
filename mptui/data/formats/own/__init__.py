"""Data sets of the person's own: their samples, read in data workers, and their halves."""
