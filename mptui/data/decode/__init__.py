"""Files to arrays: images, JPEG, masks."""
