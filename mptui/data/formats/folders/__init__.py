"""Sets of image files in folders: which folder is a split, a class, images or masks; each file once."""
