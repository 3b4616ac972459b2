"""The screens, one file each, with the stylesheet of each beside it."""
