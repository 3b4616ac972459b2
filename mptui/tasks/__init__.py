"""What is learnt: how outputs and targets of a batch become a loss and metrics."""
