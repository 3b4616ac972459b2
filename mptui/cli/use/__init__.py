"""Commands for use beside training: prepare."""
