"""Side-by-side measurements; each script prints its table and writes JSON with the machine it ran on."""
