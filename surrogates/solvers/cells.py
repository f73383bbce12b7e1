"""Partitions of the data into cells of neighbours, each with some rows from everywhere.

What a point and its neighbours say of each other is the part of a rough function that a solver
learns last, and a block that holds both settles it at once; the rows from everywhere settle what is
smooth over many cells. Where the cells lie changes from one partition to the next: what one cuts
apart the next one holds together. Of a smooth function, of which any rows say nearly all, random
blocks learn as much or more.

Cells are the leaves of a tree. A node is cut between the rows that are more like one random row of
it and those that are more like another, at the quantile that its parts need.

Notation: n rows, of which a process holds n_r.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surrogates import memory
from surrogates.solvers.state import Order
from surrogates.systems.preconditioners import column_factor
from surrogates.systems.system import KernelSystem

SMOOTH = 0.03  # what half a block's columns leave of a smooth kernel's diagonal

Likeness = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Cells:
    """Arranges the rows of ``system`` in cells.

    References:
        Dasgupta, Freund (2008), "Random Projection Trees and Low Dimensional Manifolds", for such
        trees; Beatson, Light, Billings (2000), "Fast Solution of the Radial Basis Function
        Interpolation Equations: Domain Decomposition Methods", for blocks of neighbours, with a few
        rows from everywhere. Differs: the parts are disjoint, and others every epoch.
    """

    system: KernelSystem
    missed: Tensor  # (r,) what 1, …, r random columns leave of K's diagonal, relative to it
    from_everywhere: float = 0.1  # share of a part's rows that are drawn from everywhere

    @classmethod
    def of(cls, system: KernelSystem, generator: torch.Generator, num_probed: int = 500) -> "Cells":
        """Return the cells of ``system``; ``num_probed`` rows show what as many others leave."""
        order = torch.randperm(system.n, generator=generator, device=generator.device)
        rank = min(num_probed, (system.n + 1) // 2)
        probed = system.restrict(order[: rank + num_probed].to(system.device))
        factor = column_factor(probed, rank, generator)
        left = probed.diagonal.mean() - factor.square().mean(0).cumsum(0)
        # The columns' own rows miss nothing
        others = probed.n - torch.arange(1, rank + 1, device=left.device)
        missed = left * probed.n / others.clamp_min(1) / probed.diagonal.mean()
        return cls(system, missed.cpu())

    def pay(self, size: int) -> bool:
        """Return whether blocks of ``size`` rows pay as cells: not if half of one leaves little."""
        half = math.ceil(size / 2)
        return bool(self.missed[min(half, len(self.missed)) - 1] >= SMOOTH)

    def num_from_everywhere(self, size: int) -> int:
        """Return how many of the first rows of a part of so many are from everywhere."""
        return math.ceil(self.from_everywhere * size)

    def arranged(self, order: Order, generator: torch.Generator) -> Order:
        """Return an order whose parts have the sizes of those of ``order``, and of their rows the
        first ones; the others are a cell each. A single part and parts of single rows stay as they
        are.
        """
        if not 1 < order.num_parts <= order.num_rows // 2:
            return order
        parts = [order.part(number) for number in range(order.num_parts)]
        kept = [part[: self.num_from_everywhere(len(part))] for part in parts]
        others = torch.cat([part[len(rest) :] for part, rest in zip(parts, kept, strict=True)])
        numbers = torch.randperm(len(parts), generator=generator, device=generator.device).tolist()
        sizes = [len(parts[number]) - len(kept[number]) for number in numbers]
        cells = self._cut(others, sizes, generator)
        for number, cell in zip(numbers, cells, strict=True):
            kept[number] = torch.cat([kept[number], cell])
        return replace(order, content=(torch.cat(kept),))

    def _cut(self, rows: Tensor, sizes: list[int], generator: torch.Generator) -> list[Tensor]:
        likeness = self._likeness()
        nodes = [(rows, sizes)]
        while len(nodes) < len(sizes):
            to_cut = [members for members, within in nodes if len(within) > 1]
            scores = self._scores(likeness, to_cut, generator)
            halves = []
            for members, within in nodes:
                half = len(within) // 2
                if half == 0:
                    halves.append((members, within))
                    continue
                ordered = members[scores[members].argsort(stable=True)]
                first = sum(within[:half])
                halves.append((ordered[:first], within[:half]))
                halves.append((ordered[first:], within[half:]))
            nodes = halves
        return [members for members, _ in nodes]

    def _scores(
        self, likeness: Likeness, nodes: list[Tensor], generator: torch.Generator
    ) -> Tensor:
        """Return how much more each row is like one random row of its node than another, (n,)."""
        rows = self.system.rows
        own = torch.zeros(rows.num_held, device=self.system.device)
        for members in nodes:
            chosen = torch.randint(
                len(members), (2,), generator=generator, device=generator.device
            ).to(members.device)
            _, held = rows.owned(members)
            values = likeness(held, members[chosen])
            own[held] = (values[:, 0] - values[:, 1]).to(own.dtype)
        return rows.gather(own)

    def _likeness(self) -> Likeness:
        """Return the map from rows held here (m,) and rows of all (2,) to how like they are, (m,
        2): e^-distance in lengthscales, computed so that any number of processes finds the same,
        or the kernel where it has no lengthscales.
        """
        system = self.system
        form = system.stationary
        if form is None:
            return lambda held, others: system.columns(others)[held]

        def likeness(held: Tensor, others: Tensor) -> Tensor:
            chosen = form.scaled(system.rows.take(system.points, others)).double()
            found = []
            for part in held.split(memory.part_size(chosen.numel())):
                gaps = form.scaled(system.points[part]).double().unsqueeze(1) - chosen
                found.append(gaps.square().sum(-1).sqrt().neg().exp())
            return torch.cat(found)

        return likeness
