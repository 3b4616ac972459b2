"""Which precision is safe for a model: its own batches in fp32, bf16 and fp16, layer by layer."""
