"""Checks which precision is safe for a model: compares fp32, bf16 and fp16 on its batches, layer by layer."""
