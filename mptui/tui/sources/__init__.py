"""Sources of the live screen: they deliver events and receive commands."""
