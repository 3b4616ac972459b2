"""Types, batches and random numbers that the data room shares."""
