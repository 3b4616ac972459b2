"""A run as a thing on disk and in a process: its directory, its journal, the session that hosts it."""
