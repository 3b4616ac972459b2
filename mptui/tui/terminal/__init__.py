"""The terminal of the process: streams, driver, supervisor, ASCII mode."""
