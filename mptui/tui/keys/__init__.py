"""Keys: the table of bindings, remapping, order of effects."""
