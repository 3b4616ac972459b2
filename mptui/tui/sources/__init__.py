"""Where the live screen gets its events from, and where its commands go."""
