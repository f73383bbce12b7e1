"""The seam between what wants a batch, such as a study, and what chooses it: a ``Strategy`` answers
a ``Request``.

Notation: n values, d inputs, X (..., d) points, bounds (2, d), q points of a batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from botorch.models.model_list_gp_regression import ModelListGP
from torch import Tensor

from acquisition.candidates import check_bounds, model_list
from acquisition.constraints import FeasibleSet
from acquisition.outcomes import Paths, Success
from acquisition.thompson import AcquisitionProgress, ParallelThompsonSampling
from surrogates import PathwiseGP, checks
from surrogates.operators.linalg import CHEAP_FACTOR_UP_TO

Sampler = Callable[..., ParallelThompsonSampling]


@dataclass(frozen=True, eq=False)
class Request:
    """What a batch is to be chosen by.

    Attributes:
        model: the surrogate of all values so far; several of them draw jointly.
        q: points.
        bounds: (2, d), in the units of the model's inputs, of its dtype and device.
        generator: of all that is random.
        paths: q paths of the model, of each if there are several; ``None`` if they have not been
            drawn.
        X_pending: (p, d), points under evaluation, which are not to be proposed again.
        choices: (c, d), numbers of any kind, the only points to choose from; ``None`` for the box.
        constraints: what single points must meet, by the names of the arguments of
            ``FeasibleSet.of``: inequalities, fixed features, rounding and so on.
        goal: ``maximize``, ``objective`` and ``outcome_constraints``, as in
            ``ParallelThompsonSampling``; the largest value of one output if there is none of them.
        success: maps points (..., q, d) to the probabilities (..., q) that evaluations there
            succeed; ``None`` where all do, as far as is known.
        shared: whether all processes of ``torch.distributed`` make the batch together, as in
            ``ParallelThompsonSampling``; ``paths`` are then this process's share.
        batches: values of the batches before this one, in the model's direction: first what was
            known before there was a model; NaN for an evaluation that failed.
        callback: to be called with :class:`AcquisitionProgress`.

    Raises:
        TypeError, ValueError: for ``model``, ``q``, ``bounds`` and points that no strategy can use.
    """

    model: PathwiseGP | Sequence[PathwiseGP] | ModelListGP
    q: int
    bounds: Tensor
    generator: torch.Generator
    paths: Paths | Sequence[Paths] | None = None
    X_pending: Tensor | None = None
    choices: Tensor | None = None
    constraints: Mapping[str, Any] = field(default_factory=dict)
    goal: Mapping[str, Any] = field(default_factory=dict)
    success: Success | None = None
    shared: bool = False
    batches: Sequence[Tensor] = ()
    callback: Callable[[AcquisitionProgress], None] | None = None

    def __post_init__(self) -> None:
        checks.positive_int("q", self.q)
        check_bounds(self.bounds, model_list(self.model))
        for name in ("X_pending", "choices"):
            points = checks.optional(checks.points, name, getattr(self, name), self.bounds)
            object.__setattr__(self, name, points)

    @cached_property
    def feasible_set(self) -> FeasibleSet:
        """The points that may be proposed, pending ones and ``choices`` aside."""
        return FeasibleSet.of(self.bounds, **self.constraints)

    def beside(self, points: Tensor) -> "Request":
        """Return the same request, by which further points (k, d) are not to be proposed again."""
        pending = points if self.X_pending is None else torch.cat([self.X_pending, points])
        return replace(self, X_pending=pending)


@runtime_checkable
class Strategy(Protocol):
    """A way to choose batches. It keeps nothing from one request to the next, so that a study that
    is opened again goes on as if it had never been closed.
    """

    def generate(self, request: Request) -> Tensor:
        """Return the batch (q, d): feasible points, distinct, none of them pending or in the
        training data, the same for the same request and state of its generator.

        Raises:
            ValueError: if there are no q such points.
        """


@runtime_checkable
class ChoosingStrategy(Strategy, Protocol):
    """A strategy that chooses among others by the numbers of points and values."""

    def is_for_few(self, q: int, num_values: int) -> bool:
        """Return whether the surrogate of so many values, for q points, is to be the best that
        there is, which takes longer.
        """

    def reason(self, request: Request) -> str:
        """Return in a line how the points of a request are chosen, and why."""


class ForFewValues(ABC):
    """A strategy that wants the best surrogate there is of up to 1000 values, whatever q.

    Attributes:
        name: by which a study is told to take it.
    """

    name: ClassVar[str]

    @staticmethod
    def is_for_few(q: int, num_values: int) -> bool:
        """Return whether the values are few, as :class:`ChoosingStrategy` has it."""
        return num_values <= CHEAP_FACTOR_UP_TO

    def num_by_log_ei(self, q: int, num_values: int) -> int:
        """Return how many of q points are chosen by expected improvement, which takes longest."""
        return 0

    def reason(self, request: Request) -> str:
        """Return in a line how points are chosen, as :class:`ChoosingStrategy` has it."""
        return f"{self.name}: as the study was told"

    @abstractmethod
    def generate(self, request: Request) -> Tensor:
        """Return the batch, as :class:`Strategy` has it."""


@runtime_checkable
class SharingStrategy(Strategy, Protocol):
    """A strategy whose batches several processes can make together, by requests that are
    ``shared``.

    Attributes:
        shares: whether it is one.
    """

    shares: ClassVar[bool]
