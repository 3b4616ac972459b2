"""What the first two screens know: devices, data, models, memory."""
