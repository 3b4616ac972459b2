"""What a set is: class folders, images with masks, torchvision's sets, sharded sets, synthetic shapes."""
