"""Configuration files of other programs: YAML, TOML, JSON and literals of Python."""
