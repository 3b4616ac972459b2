"""The exercises of `mptui learn`: number formats, loss scaling, an overflow, autocast, BatchNorm."""
