"""Which maximisers make the batch: each function's best point that is not known already and that no
other function has taken.

Notation: s functions, k points for each, points (s, k, d), bounds (2, d).
"""

import torch
from sklearn.neighbors import KDTree
from torch import Tensor

from acquisition.multistart import SCREENED_AT_ONCE, Functions
from surrogates.operators.tiles import spans

DUPLICATE_DISTANCE = 1e-6  # in units of the box's sides


class KnownPoints:
    """Points X (p, d) that are not to be proposed again, and with them whatever lies within
    ``DUPLICATE_DISTANCE`` of one.
    """

    def __init__(self, X: Tensor, bounds: Tensor):
        self.width = bounds[1] - bounds[0]
        self.tree = KDTree(self._scaled(X)) if len(X) else None

    def near(self, X: Tensor) -> Tensor:
        """Return which of the points X (..., d) are known: (...)."""
        if self.tree is None or not X.numel():
            return torch.zeros(X.shape[:-1], dtype=torch.bool, device=X.device)
        counts = self.tree.query_radius(
            self._scaled(X.reshape(-1, X.shape[-1])), DUPLICATE_DISTANCE, count_only=True
        )
        return torch.as_tensor(counts > 0, device=X.device).reshape(X.shape[:-1])

    def _scaled(self, X: Tensor) -> object:
        return (X.detach().double() / self.width.double()).cpu().numpy()


def distinct_best(
    points: Tensor, values: Tensor, bounds: Tensor, known: KnownPoints | None = None
) -> tuple[Tensor, Tensor]:
    """Return each function's best of k points by value (s, k) that is not known and that no earlier
    function has taken: (s, d).

    A function without such a point keeps its best one; the second tensor (s,) tells which functions
    have found theirs.
    """
    order = values.argsort(dim=1, descending=True)
    ranked = points.take_along_dim(order.unsqueeze(-1), dim=1)
    unknown = torch.ones_like(order, dtype=torch.bool) if known is None else ~known.near(ranked)
    chosen = ranked[:, 0].clone()
    found = unknown.new_zeros(len(ranked))
    scaled = ranked / (bounds[1] - bounds[0])
    taken = ranked.new_empty(len(ranked), ranked.shape[2])
    for i in range(len(ranked)):
        distances = torch.cdist(scaled[i], taken[:i], compute_mode="donot_use_mm_for_euclid_dist")
        free = (unknown[i] & (distances > DUPLICATE_DISTANCE).all(dim=1)).nonzero()
        k = int(free[0]) if len(free) else 0
        chosen[i] = ranked[i, k]
        taken[i] = scaled[i, k]
        found[i] = len(free) > 0
    return chosen, found


def best_choices(
    functions: Functions, choices: Tensor, *, rows: Tensor | None = None, sign: float = 1.0
) -> Tensor:
    """Return, one function after the other, its best of the choices (c, d) that no earlier one has
    taken: (number of rows, d).

    Values are computed for ``SCREENED_AT_ONCE`` pairs at a time; of each function only as many are
    kept as can be needed.

    Args:
        rows: the functions that choose, in order; all s if ``None``. At most c.
        sign: 1 to maximise, −1 to minimise.
    """
    s = functions.num_samples
    rows = torch.arange(s, device=choices.device) if rows is None else rows
    values = choices.new_empty(len(rows), 0)
    index = torch.empty(len(rows), 0, dtype=torch.long, device=choices.device)
    for part in spans(len(choices), max(1, SCREENED_AT_ONCE // s)):
        positions = torch.arange(part.start, part.stop, device=choices.device).expand(len(rows), -1)
        values = torch.cat([values, sign * functions(choices[part])[rows]], dim=1)
        values, kept = values.topk(min(len(rows), values.shape[1]), dim=1)
        index = torch.cat([index, positions], dim=1).gather(1, kept)
    chosen = index.new_empty(len(rows))
    taken = torch.zeros(len(choices), dtype=torch.bool, device=choices.device)
    for i, ranking in enumerate(index):
        chosen[i] = ranking[~taken[ranking]][0]
        taken[chosen[i]] = True
    return choices[chosen]
