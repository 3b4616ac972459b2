"""torch.compile: cost-benefit policy, handling in the loop, code cache."""
