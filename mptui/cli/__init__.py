"""What the shell sees: one file a group of commands, and the console's output; no logic of its own."""
