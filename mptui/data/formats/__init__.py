"""Formats of datasets: class folders, images with masks, prepared sets, torchvision sets, shapes."""
