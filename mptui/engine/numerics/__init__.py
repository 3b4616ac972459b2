"""What 16 bits do to the numbers of a network: counted on the device, read late, reported layer by layer."""
