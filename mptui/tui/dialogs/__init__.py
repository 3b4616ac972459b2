"""Dialogs over a screen: input, help, quit, switching profiles."""
