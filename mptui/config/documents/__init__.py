"""Files that people write settings in: TOML, or YAML."""
