"""Checks the machine, the data and the configuration, and compares two configurations.

Each check returns findings: ok, advice or error, with a description and a remedy. A failing check is a
finding and doesn't stop the others.
"""
