"""Turns a request into a job; all values are decided before the first step."""
