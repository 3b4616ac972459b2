"""What an opened set was understood to be, in words, as a document, as a picture, and as a list."""
