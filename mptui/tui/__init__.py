"""The terminal UI: the app, its screens, dialogs and panels. Imports no torch."""
