"""Files on disk: atomic replacement, safetensors, the user's cache folder."""
