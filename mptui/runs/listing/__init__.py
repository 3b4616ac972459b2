"""The list of all runs: its rows, and what a person does with runs that have ended."""
