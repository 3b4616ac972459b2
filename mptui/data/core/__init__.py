"""What all parts of the data room share: types, batches, random numbers by position."""
