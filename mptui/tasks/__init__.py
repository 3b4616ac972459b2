"""Tasks: the loss and the metrics of a network's outputs and a batch's targets."""
