"""The screens, one file each, some with a stylesheet beside it."""
