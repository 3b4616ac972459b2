"""Settings chosen by measurement, and the estimate of a step's memory."""
