"""A set of a person's own, in a module that a data worker imports without torch."""

import numpy as np


class Noise:
    """Images whose brightness is that of their class."""

    classes = ("dark", "light")

    def __init__(self, train):
        self.train = train

    def __len__(self):
        return 32 if self.train else 16

    def __getitem__(self, index):
        noise = np.random.default_rng([index, self.train]).integers(0, 120, (16, 16, 3))
        return (noise + 60 * (index % 2)).astype(np.uint8), index % 2
