"""The view of a run at an earlier moment, from its journal."""
