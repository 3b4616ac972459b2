"""What a run can name: networks, tasks and optimizers. Reading these dictionaries imports no torch."""
