"""The terminal UI: app, screens, dialogs and panels. Imports no torch."""
