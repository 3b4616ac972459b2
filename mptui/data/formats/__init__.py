"""Formats of datasets: class folders, images with masks, packed, prepared and torchvision sets, shapes."""
