"""torch.compile: when it pays, what it costs, where compiled code is cached."""
