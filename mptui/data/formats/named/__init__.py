"""Sets by name: the built-in shapes and those of torchvision."""
