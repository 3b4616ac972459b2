"""Sets whose images are packed into large files: tar shards and Parquet files."""
