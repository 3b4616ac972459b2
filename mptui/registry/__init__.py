"""What a run can name: networks, tasks, optimizers, trackers. Reading these dictionaries imports no torch."""
