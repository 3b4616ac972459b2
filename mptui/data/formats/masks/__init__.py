"""What the values of a set's masks mean, and how masks lie to their photographs: decided once for the set."""
