"""Improved precision and recall of made images (Kynkäänniemi et al. 2019, https://arxiv.org/abs/1904.06991).

Shapes: N points of one set, M of another, R of a part, D features.
"""

from typing import NamedTuple

import torch

NEIGHBOURS = 3
"""k, as in the paper."""
_ROWS = 1024
"""Points whose distances to a set are in memory at once."""


class PrecisionRecall(NamedTuple):
    """Shares of 1: of the made images that look real, and of the real ones that could have been made."""

    precision: float
    recall: float


def precision_recall(real_ND: torch.Tensor, made_MD: torch.Tensor) -> PrecisionRecall:
    """Compare two sets of features, of as many images each: the radii depend on the number.

    Around each point of a set is a sphere that reaches its k-th nearest neighbour in it. Precision is the
    share of the made points inside a sphere of the real ones, recall that of the real ones inside a sphere
    of the made ones. Each set needs more than k points.
    """
    return PrecisionRecall(_share_inside(made_MD, real_ND), _share_inside(real_ND, made_MD))


def _share_inside(points_MD: torch.Tensor, set_ND: torch.Tensor) -> float:
    # the nearest one of a point is itself
    parts = torch.split(set_ND, _ROWS)
    radii_N = torch.cat([_distances(part_RD, set_ND).kthvalue(NEIGHBOURS + 1).values for part_RD in parts])
    parts = torch.split(points_MD, _ROWS)
    inside = [(_distances(part_RD, set_ND) <= radii_N).any(dim=1) for part_RD in parts]
    return float(torch.cat(inside).double().mean())


def _distances(part_RD: torch.Tensor, set_ND: torch.Tensor) -> torch.Tensor:
    # by differences: as a product of matrices, those of near points are all rounding
    return torch.cdist(part_RD, set_ND, compute_mode="donot_use_mm_for_euclid_dist")
