"""A classifier of two convolutions, `small_cnn`, for tests of what surrounds a network.

A ResNet-18 has 11 million weights: a run of a few steps would spend its time on its checkpoints.
"""

from torch import nn

from mptui.registry.models import MODELS, ModelSpec
from mptui.registry.tasks import CLASSIFICATION

NAME = "small_cnn"


class SmallCnn(nn.Module):
    """Two blocks of a convolution, BatchNorm and ReLU, an average over all pixels, and a linear layer."""

    def __init__(self, num_classes):
        super().__init__()
        self.layer1 = _block(3, 8)
        self.layer2 = _block(8, 16)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, num_classes)

    def forward(self, images):
        """Return a row of class logits for each image."""
        return self.fc(self.pool(self.layer2(self.layer1(images))).flatten(1))


def _block(inputs, outputs):
    convolution = nn.Conv2d(inputs, outputs, kernel_size=3, stride=2, padding=1)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def register():
    """Make it a network of this process, and of those that it forks."""
    MODELS[NAME] = ModelSpec(task=CLASSIFICATION, build=lambda num_classes, side: SmallCnn(num_classes))
