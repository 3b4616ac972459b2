"""Uses trained runs: opens one with the weights of a checkpoint, measures it, and predicts with it."""
