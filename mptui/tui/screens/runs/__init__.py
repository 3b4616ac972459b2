"""The screens of all runs: the list, the comparison, and the dialog of a fork."""
