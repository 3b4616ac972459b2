"""Every key of every screen, on a terminal of 80x24."""
