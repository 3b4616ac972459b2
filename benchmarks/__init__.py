"""Side-by-side benchmarks; each script prints a table and writes JSON that includes the machine."""
