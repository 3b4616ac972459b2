"""Variational autoencoders, and the latents that a diffusion model learns."""
