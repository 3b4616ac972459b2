"""What is trained: a closed set of networks by name, and the weights they may start from."""
