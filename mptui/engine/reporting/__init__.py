"""Per-step figures: read asynchronously from the device, aggregated, analyzed."""
