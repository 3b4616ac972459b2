"""`docs/speed.md`: a section for each benchmark, made of the results there are."""
