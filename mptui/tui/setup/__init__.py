"""The state of the first two screens: devices, data, models, memory."""
