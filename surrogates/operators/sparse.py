"""Products of rows that are mostly zero, such as molecular fingerprints: sums of the few rows of
the other matrix that they name.

Notation: X (m, d) with few entries other than 0, W (d, s).
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

DENSEST = 1 / 16  # share of entries; above, a dense product is faster
FEWEST_COLUMNS = 256  # of X
COLUMNS_AT_ONCE = 128  # of W, which then stays in a core's cache


class SparseRows(NamedTuple):
    """Rows X (m, d) by their entries other than 0.

    Attributes:
        columns: (k,) of the entries, row after row.
        starts: (m,) places of the rows' first entries.
        values: (k,) entries; ``None`` where all are 1.
    """

    columns: Tensor
    starts: Tensor
    values: Tensor | None

    def part(self, i: slice) -> "SparseRows":
        """Return the rows ``i``, one after the other."""
        first, last, _ = i.indices(len(self.starts))
        start = int(self.starts[first]) if first < len(self.starts) else len(self.columns)
        stop = int(self.starts[last]) if last < len(self.starts) else len(self.columns)
        return SparseRows(
            self.columns[start:stop],
            self.starts[first:last] - start,
            None if self.values is None else self.values[start:stop],
        )

    def matmul(self, W: Tensor) -> Tensor:
        """Return X @ W, (m, s)."""
        parts = [
            torch.nn.functional.embedding_bag(
                self.columns,
                part.contiguous(),
                self.starts,
                mode="sum",
                per_sample_weights=self.values,
            )
            for part in W.split(COLUMNS_AT_ONCE, dim=1)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def sparse_rows(X: Tensor) -> SparseRows | None:
    """Return the rows X (m, d) by their entries, on a CPU, if these are few; ``None`` otherwise."""
    if X.device.type != "cpu" or X.ndim != 2 or X.shape[1] < FEWEST_COLUMNS or X.requires_grad:
        return None
    there = X.numpy() != 0.0
    if np.count_nonzero(there) > DENSEST * X.numel():
        return None
    places = torch.from_numpy(np.flatnonzero(there))
    width = X.shape[1]
    starts = torch.searchsorted(places, torch.arange(0, X.numel(), width, device="cpu"))
    values = X.reshape(-1)[places]
    return SparseRows(places % width, starts, None if bool((values == 1.0).all()) else values)


def matmul_rows(X: Tensor, W: Tensor) -> Tensor:
    """Return X @ W, (m, s), by the few entries of X where it is sparse."""
    rows = sparse_rows(X)
    return X @ W if rows is None else rows.matmul(W)
