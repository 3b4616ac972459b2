"""What the machine is: its devices, what they do now, and what suits them."""
