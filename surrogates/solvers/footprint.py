"""What a solve takes of each process, as its solver declares it: numbers held, kernel entries and
operations of a step, and what a step sends.
"""

import math
from dataclasses import dataclass, field

# (n, s) matrices more when columns end: the value and its residual, what the method proposes, what
# is left of the right-hand sides, and of the method's own, one at a time
WHEN_COLUMNS_END = 5


@dataclass(frozen=True)
class Size:
    """A solve: ``n`` points of ``dim`` inputs, ``columns`` right-hand sides, whose rows ``ranks``
    processes share.
    """

    n: int
    dim: int
    columns: int = 1
    ranks: int = 1

    @property
    def rows(self) -> int:
        """The rows of a process, n_r = ⌈n/p⌉."""
        return math.ceil(self.n / self.ranks)


@dataclass(frozen=True)
class Footprint:
    """What a solver needs beside the points, their kernel factors and the right-hand side.

    Attributes:
        batch: b, the rows of the kernel matrix that a step multiplies; n for all of them.
        held: (n_r, s) matrices as long as it runs.
        passing: more of them, in a step.
        sweeps: of an (n_r, s) matrix read or written in a step.
        kept: further numbers held, by what they are of.
        order: whole numbers held, of an epoch's order.
        block_entries: kernel entries of the step's block that this process evaluates.
        flops: operations of a step beside the product with the batch.
        summed: numbers that a step sends and receives but for whole products, those of a sum that
            all processes receive twice.
        messages: sums over the processes in a step, but for whole products.
        whole_products: products with all of the matrix in a step, which pass all points and one
            (n, s) matrix around.
    """

    batch: int
    held: int
    passing: int
    sweeps: int
    kept: dict[str, int] = field(default_factory=dict)
    order: int = 0
    block_entries: float = 0.0
    flops: float = 0.0
    summed: int = 0
    messages: int = 0
    whole_products: int = 0
