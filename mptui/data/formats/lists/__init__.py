"""Lists of images: a table of CSV, TSV or Parquet with a label or a mask for each image."""
