"""Predicts image files with a trained run: classes into a table, masks into a folder."""
