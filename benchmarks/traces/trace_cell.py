"""Traces of the solvers on one linear system: how the posterior mean approaches the exact one,
against epochs and seconds.

Every checkpoint is a run from the start with a larger budget, because budgets shape what a method
does (averages, for example, run over part of them). The budgets grow geometrically, so that all of
them together cost about as much as the last one and a small multiple.

Notation: w the weights found, w* the exact ones, K the kernel matrix, both in float64 where they
are compared.

References:
    Lin et al. (2023), "Sampling from Gaussian Process Posteriors using Stochastic Gradient
    Descent", Figures 3 and 8.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from scalable_bo.experiments import torchrun
from scalable_bo.experiments.cells import Cell, Status
from scalable_bo.experiments.formats import exact
from scalable_bo.experiments.models import matern_kernel
from scalable_bo.experiments.plots import COLOURS, GREY, Line, LinePanel, colour_of, draw_panels
from scalable_bo.experiments.presets import find_preset
from scalable_bo.experiments.problems import GPPrior
from scalable_bo.experiments.records import Record
from scalable_bo.experiments.regression.data import (
    NUM_SPLITS,
    RegressionData,
    check_data_set,
    load_hyperparameters,
    load_regression_data,
)
from scalable_bo.experiments.regression.methods import Budget, solver_within
from scalable_bo.experiments.solvers import SPEND_IT_ALL
from surrogates import (
    Auto,
    Cholesky,
    IterativeSolver,
    KernelSystem,
    Solution,
    checks,
    kernel_operator,
)
from surrogates.operators.kernel_matrix import KernelOperator
from surrogates.regressors.gp_regressor import MOST_JOINT
from surrogates.solvers.registry import check_solver

_TRACED = (
    ("residual", "relative residual"),
    ("mean_error", "RMSE to the exact mean"),
    ("test_rmse", "test RMSE"),
    ("weights_error", "weights, ‖w − w*‖"),
    ("rkhs_error", "RKHS, ‖w − w*‖$_K$"),
)
_AXES = {"epochs": "epochs, n² kernel entries", "seconds": "seconds"}


def plot_solvers(records: Sequence[Record], path: Path) -> None:
    """Draw the traces of several solvers on one system: a row of panels for each metric, against
    epochs and against seconds.

    Args:
        records: traces of one problem; those without a checkpoint are left out.
    Raises:
        ValueError: if no trace has a checkpoint.
    """
    traces = [record for record in records if record["checkpoints"]]
    if not traces:
        raise ValueError("`records` must hold at least one trace with a checkpoint, got none.")
    exact = traces[0]["exact_test_rmse"]
    level = Line([exact], style={"color": GREY, "linestyle": "--", "label": "exact"})
    rows = []
    for key, title in _TRACED:
        if any(_positive(trace, key) for trace in traces):
            has_level = key == "test_rmse" and exact is not None
            rows.append(
                [
                    LinePanel(
                        [*_lines(traces, axis, key), *([level] if has_level else [])],
                        {"xscale": "log", "yscale": "log", "xlabel": label, "ylabel": title},
                    )
                    for axis, label in _AXES.items()
                ]
            )
    problem, n, noise = traces[0]["settings"]["problem"], traces[0]["num_train"], traces[0]["noise"]
    draw_panels(rows, path, f"Solvers on {problem}: n = {n}, noise variance {noise:.2g}")


def _lines(traces: list[Record], axis: str, key: str) -> list[Line]:
    lines = []
    for index, trace in enumerate(traces):
        points = _positive(trace, key)
        style: dict[str, Any] = {"color": colour_of(index), "label": trace["settings"]["solver"]}
        style |= {"marker": "o"} if index < len(COLOURS) else {"marker": "s", "linestyle": "--"}
        lines.append(Line([p[key] for p in points], [p[axis] for p in points], style=style))
    return lines


def _positive(trace: Record, key: str) -> list[Record]:
    """Return the checkpoints that a logarithmic axis can show."""
    points = trace["checkpoints"]
    return [p for p in points if p["epochs"] > 0.0 and (p[key] or 0.0) > 0.0]


THOMPSON = "thompson"
# The Thompson problem has its inputs, noise, features and blocks
PRESET = find_preset("adasap2025")


@dataclass(frozen=True)
class System:
    """What a trace solves, in float64 on the CPU, and the exact solution, if there is one.

    Attributes:
        data: points to learn from and to test on, and their targets.
        weights: (n, 1) the exact weights w*; ``None`` where they are not computed.
        mean: (m, 1) the mean that these give at the test points; likewise.
    """

    data: RegressionData
    kernel: Kernel
    noise: float
    weights: Tensor | None = None
    mean: Tensor | None = None

    def cross(self, device: torch.device | str) -> tuple[KernelOperator, KernelOperator]:
        """Return K of the data, and that of the test points and the data."""
        X, test_X = self.data.train_X.to(device), self.data.test_X.to(device)
        kernel = deepcopy(self.kernel).to(X)
        return kernel_operator(kernel, X), kernel_operator(kernel, test_X, X)

    def solved(self, device: str = "cpu") -> System:
        """Return the system with its exact solution, by Cholesky in float64."""
        K, cross = self.cross(device)
        y = self.data.train_y[:, None].to(device)
        weights = Cholesky().solve(KernelSystem(K, self.noise), y).value
        return replace(self, weights=weights, mean=cross @ weights)


@dataclass(frozen=True)
class TraceCell(Cell[System]):
    """One trace: a linear system and a solver.

    Args:
        solver: of the registry.
        problem: a UCI data set's name, or ``thompson``: a function drawn from the prior, at uniform
            points of [0, 1]^8.
        n: points of the Thompson problem.
        noise: noise variance σ²; ``None`` for the published one, 1e-6 for Thompson.
        epochs: the largest budget.
        points: checkpoints, budgets from 1 to ``epochs`` in geometric progression.
        exact: compare with the exact solution, which n up to 20 000 allows.
        data_dir: folder of the data sets; see ``find_data_dir``.
        seed: of the Thompson problem and the solver.
        dtype: of the solver, ``float32`` or ``float64``.
    Raises:
        TypeError, ValueError: if a name is unknown or a number out of range.
    """

    experiment: ClassVar[str] = "solvers"
    steps: ClassVar[str | None] = "checkpoints"
    told = (
        ("epochs", "epochs", ".1f"),
        ("seconds", "seconds", ".1f"),
        ("residual", "residual", ".1e"),
        ("mean_error", "to the exact mean", ".1e"),
        ("test_rmse", "test RMSE", ".4f"),
    )
    solver: str
    problem: str = "pol"
    split: int = 0
    n: int = 2000
    lengthscale: float = 0.5
    noise: float | None = None
    epochs: float = 100.0
    points: int = 12
    exact: bool = True
    data_dir: Path | None = None
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_solver(self.solver)
        if not 0 <= self.split < NUM_SPLITS:
            raise ValueError(f"`split` must be between 0 and {NUM_SPLITS - 1}, got {self.split}.")
        checks.fields(self, ["n", "points"], checks.positive_int)
        checks.fields(self, ["lengthscale", "epochs"], checks.positive_float)
        checks.fields(self, ["noise"], checks.positive_float, "Use a small value such as 1e-6.")
        if self.epochs < 1.0:
            raise ValueError(f"`epochs` must be at least 1, got {self.epochs}.")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"`dtype` must be float32 or float64, got {self.dtype!r}.")
        if self.problem == THOMPSON:
            self.check_size(self.n)

    @property
    def problem_name(self) -> str:
        """The system's name, for files and titles."""
        words = [self.problem, str(self.split)]
        if self.problem == THOMPSON:
            words[1:] = [f"n{self.n}", f"l{exact(self.lengthscale)}", f"s{self.seed}"]
        return "_".join(words + ([] if self.noise is None else [f"noise{exact(self.noise)}"]))

    @property
    def name(self) -> str:
        return f"solvers_{self.problem_name}_{self.solver}"

    def budgets(self) -> list[float]:
        """Return the checkpoints' budgets in epochs."""
        if self.solver == "cholesky":  # it has no budget
            return [1.0]
        budgets: list[float] = np.geomspace(self.epochs, 1.0, self.points)[::-1].tolist()
        return budgets

    def check_size(self, n: int) -> None:
        """Raise if the exact solution is asked for and n is too large for it."""
        if self.exact and n > MOST_JOINT:
            raise ValueError(
                f"`exact`: the exact solution is computed for up to {MOST_JOINT} points, got {n}."
                " Use --no-exact."
            )

    @property
    def num_steps(self) -> int:
        return len(self.budgets())

    def check_files(self) -> None:
        """Raise if the data are not there, or too many for the exact solution that is asked for."""
        if self.problem != THOMPSON:
            check_data_set(self.problem, self.split, self.data_dir)
            if self.exact:
                data = load_regression_data(self.problem, self.split, self.data_dir)
                self.check_size(len(data.train_X))

    @property
    def source(self) -> Hashable:
        data = (self.problem, self.split, self.data_dir, self.n, self.lengthscale, self.seed)
        return (*data, self.noise, self.exact, self.device)

    def load(self, on_status: Status) -> System:
        system = load_system(self)
        on_status("solving exactly" if self.exact else "loaded")
        return system.solved(self.device) if self.exact else system

    def run(self, data: System, on_status: Status, state: Path) -> Iterator[Record]:
        """Yield the record after each checkpoint, a run with budget after budget.

        It has ``method``, ``num_train``, ``noise``, ``exact_test_rmse``, ``complete`` and
        ``checkpoints``, each with ``budget``, ``epochs`` and ``seconds`` (used), ``residual``
        (relative), ``test_rmse``, ``mean_error`` (root mean square distance to the exact mean at
        the test points), ``weights_error`` ‖w − w*‖ and ``rkhs_error`` ‖w − w*‖_K; the last three
        are ``None`` without the exact solution.
        """
        n = len(data.data.train_X)
        budgets = self.budgets()
        checkpoints: list[Record] = []
        record: Record = {
            "method": repr(_solver(self, n, self.epochs)),
            "num_train": n,
            "noise": data.noise,
            "exact_test_rmse": None if data.mean is None else _rmse(data.mean, data.data.test_y),
            "checkpoints": checkpoints,
        }
        X = data.data.train_X.to(self.device, getattr(torch, self.dtype))
        y = data.data.train_y.to(X)
        kernel = deepcopy(data.kernel).to(X)

        def solve(budget: float) -> Solution:
            solver = _solver(self, n, budget)
            generator = torch.Generator().manual_seed(self.seed)
            return torchrun.solve(kernel, X, y, data.noise, solver, generator=generator)

        on_status(f"{self.solver}: warming up")
        # Kernels may be compiled at their first use, which no checkpoint shall pay for
        solve(budgets[0])
        for number, budget in enumerate(budgets, 1):
            on_status(f"{self.solver}: checkpoint {number} of {len(budgets)}, {budget:.1f} epochs")
            start = time.perf_counter()
            solution = solve(budget)
            seconds = time.perf_counter() - start
            checkpoints.append({"budget": budget, "seconds": seconds} | _score(data, solution))
            yield record | {"complete": number == len(budgets)}


def load_system(cell: TraceCell) -> System:
    """Return the linear system of a trace, without its exact solution."""
    if cell.problem == THOMPSON:
        return _thompson_system(cell)
    where = (cell.problem, cell.split, cell.data_dir)
    hyperparameters = load_hyperparameters(*where)
    kernel = matern_kernel(torch.tensor(hyperparameters.lengthscale), hyperparameters.outputscale)
    noise = hyperparameters.noise if cell.noise is None else cell.noise
    return System(load_regression_data(*where), kernel, noise)


def _thompson_system(cell: TraceCell, num_test: int = 1000) -> System:
    kernel = matern_kernel(cell.lengthscale, PRESET.outputscale)
    noise = PRESET.noise if cell.noise is None else cell.noise
    generator = torch.Generator().manual_seed(cell.seed)
    drawn: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    features = PRESET.target_features
    target = GPPrior(kernel, PRESET.dim, noise=noise, num_features=features, **drawn)
    X, test_X = (torch.rand(num, PRESET.dim, **drawn) for num in (cell.n, num_test))
    data = RegressionData(X, target.observe(X, generator), test_X, target(test_X))
    return System(data, kernel, noise)


def _score(system: System, solution: Solution) -> Record:
    W = solution.value.double()
    K, cross = system.cross(W.device)
    mean = cross @ W
    scores: Record = {
        "epochs": float(solution.epochs),
        "residual": float(solution.residual.max()),
        "test_rmse": _rmse(mean, system.data.test_y),
        **dict.fromkeys(("mean_error", "weights_error", "rkhs_error")),
        "note": solution.note,
    }
    if system.weights is not None and system.mean is not None:
        D = W - system.weights
        # Rounding can make it negative where D is tiny
        squared = (D * (K @ D)).sum().clamp_min(0.0)
        scores |= {"mean_error": _rmse(mean, system.mean), "weights_error": D.norm().item()}
        scores["rkhs_error"] = squared.sqrt().item()
    return scores


def _solver(cell: TraceCell, n: int, budget: float) -> Any:
    """Return the solver that spends the budget, in epochs, on steps; evaluation comes on top."""
    spent = budget + 1.0
    limits = Budget(SPEND_IT_ALL, max_epochs=spent)
    if cell.problem == THOMPSON and PRESET.sdd.num_blocks is not None:
        limits = replace(limits, num_blocks=PRESET.sdd.num_blocks)
    solver = solver_within(cell.solver, n, limits)
    if isinstance(solver, IterativeSolver | Auto):
        return replace(solver, max_epochs=spent)
    return solver


def _rmse(A: Tensor, B: Tensor) -> float:
    return (A.flatten() - B.flatten().to(A)).square().mean().sqrt().item()
