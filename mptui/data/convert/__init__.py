"""Makes sharded sets out of folders."""
