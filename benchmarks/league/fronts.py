"""BoTorch's problems of several objectives, all to be minimised: what counts is the volume that a
front dominates within a reference point that no optimiser is told.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from botorch.test_functions import multi_objective
from botorch.test_functions.base import MultiObjectiveTestProblem
from botorch.utils.multi_objective.box_decompositions.dominated import DominatedPartitioning
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor

FRONTS: dict[str, Callable[[], MultiObjectiveTestProblem]] = {
    "front-branin-currin": multi_objective.BraninCurrin,
    "front-zdt1": partial(multi_objective.ZDT1, dim=8, num_objectives=2),
    "front-zdt3": partial(multi_objective.ZDT3, dim=6, num_objectives=2),
    "front-dtlz2": partial(multi_objective.DTLZ2, dim=6, num_objectives=2),
    "front-dtlz2-of-three": partial(multi_objective.DTLZ2, dim=7, num_objectives=3),
    "front-vehicle-safety": multi_objective.VehicleSafety,
    "front-penicillin": multi_objective.Penicillin,
    "front-car-side-impact": multi_objective.CarSideImpact,
}


def hypervolume(Y: Tensor, reference: Tensor) -> float:
    """Return the volume between values ``Y`` (n, k) and ``reference`` (k,), which is above them."""
    front = Y[(reference > Y).all(1)]
    front = front[is_non_dominated(-front)]
    return float(DominatedPartitioning(-reference, -front).compute_hypervolume()) + 0.0
