"""Keys: the table of bindings, remapping, sequential dispatch."""
