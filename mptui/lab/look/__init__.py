"""What a person looks at before a run: the data as they are understood."""
