"""Commands before and after training: prepare; evaluate, predict, export."""
