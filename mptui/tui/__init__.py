"""What the terminal sees: the app, one file a screen, one small file a panel. Imports no torch."""
