"""Commands around training: prepare."""
