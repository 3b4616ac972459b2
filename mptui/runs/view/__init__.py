"""What a screen or a console knows of a run, folded from its events."""
