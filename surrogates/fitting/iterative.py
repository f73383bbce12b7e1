"""The marginal likelihood of all data by iterative solves, for n where a factorisation is out of
reach.

Notation: X (n, d), y (n,), r = y − μ(X), H = k(X, X) + Σ, v = H⁻¹ r, probes Z (n, s), their
solutions U = H⁻¹ Z. The gradient of the log marginal likelihood in a hyperparameter θ is

    ∂L  =  ½ vᵀ ∂H v  +  vᵀ ∂μ(X)  −  ½ tr(H⁻¹ ∂H).
"""

import torch
from gpytorch.kernels import Kernel
from gpytorch.models import ExactGP
from torch import Tensor

from surrogates import checks, memory
from surrogates.callers import warn
from surrogates.fitting.search import set_apart
from surrogates.functions.draws import standard_normal
from surrogates.functions.features import PriorPaths
from surrogates.operators.kernel_matrix import kernel_operator
from surrogates.operators.tiles import spans, tile_side
from surrogates.restoring import restored_on_failure
from surrogates.rules.hyperparameters import (
    Coordinates,
    ModelT,
    StepCallback,
    data_of_parts,
    log_prior,
)
from surrogates.rules.limits import noise_at
from surrogates.solvers.auto import Auto
from surrogates.solvers.solver import Solution, Solver
from surrogates.systems.system import KernelSystem

PROBES = ("rademacher", "pathwise")
MOST_SOLVES = 3  # of one system, each of which goes on from the last


class UnsolvedFitWarning(UserWarning):
    """A fit stopped early, since a linear system that it learns from was not solved."""


@restored_on_failure
def fit_iterative(
    model: ModelT,
    *,
    num_steps: int = 50,
    first_step: float = 0.5,
    tolerance: float = 1.0,
    num_probes: int = 16,
    probes: str = "rademacher",
    solver: Solver | None = None,
    generator: torch.Generator | None = None,
    callback: StepCallback | None = None,
) -> ModelT:
    """Maximise the log marginal likelihood of all data (with its priors) by Rprop on estimated
    gradients; return ``model``.

    Lengthscales stay between a tenth of the median gap between neighbouring values of their input,
    and a thousand times its range. Equal parts of a sum start apart, as in :func:`fit_exact`.

    Every step solves for v and U in one block that starts from the last step's solutions: the
    probes stay the same, so that these move little. With A = v vᵀ less the mean over the probes, ∂L
    is that of ½ Σ_ij A_ij H_ij for A held fixed, in O(n) memory. The trace is

        tr(H⁻¹ ∂H)  =  E[uᵀ ∂H z],  z of random signs  ("rademacher"),   or   E[uᵀ ∂H u],  z ~ N(0,
        H)  ("pathwise").

    Pathwise probes z = f(X) + ε are prior paths f of random features, which follow the
    hyperparameters with their random numbers fixed.

    Args:
        num_steps: at most so many.
        first_step: of Rprop, in the logarithms of lengthscales, variances and other positive
            hyperparameters.
        tolerance: nats; the fit ends once five steps have not raised the log marginal likelihood by
            so much. Its rise is the integral of the gradient along the steps: the likelihood itself
            would need a determinant.
        num_probes: s.
        probes: ``"rademacher"``, or ``"pathwise"`` for kernels that have random features. Measured
            with n = 2000 and s = 16: solves to a residual of 0.1 leave less error with the former
            than solves to 0.01 with the latter, and cost no more; and the features' own error makes
            the latter's gradient vary up to ten times as much.
        solver: ``Auto(tolerance=3e-3, max_epochs=50)`` if ``None``; the next step goes on with
            what one leaves unsolved, at first by the solver that a solution before it names as
            ``cheaper``, if any. A system whose relative residual stays above 0.03, or the solver's
            tolerance if that is larger, after three such solves is not learned from: the fit ends
            with the last hyperparameters whose systems were solved, and a warning.
        generator: of the probes; one seeded with 0 if ``None``.
        callback: called after every step with the steps done and the rise of the log marginal
            likelihood, as estimated, in nats.

    Raises:
        TypeError, ValueError: if an argument is not as above, or ``model`` has several outputs or
            data that are not finite.
        FloatingPointError: if a gradient stops being finite. The model is then as it was; after
            Ctrl-C it is that of the last step.

    Warns:
        UnsolvedFitWarning: if the fit ended early for a system that was not solved.

    References:
        Lin et al. (2024), "Improving Linear System Solvers for Hyperparameter Optimisation in
        Iterative Gaussian Processes", arXiv:2405.18457. Differs: (1) the default probes; (2) each
        pathwise probe has random features of its own, since probes that share them err together;
        (3) Rprop, not Adam: with fixed probes the signs of the gradient are reliable, and its size
        falls by orders of magnitude on the way, which Adam's averages are slow to forget (n = 800:
        20 steps against more than 60); (4) a stop. Riedmiller, Braun (1993), "A Direct Adaptive
        Method for Faster Backpropagation Learning: The RPROP Algorithm".
    """
    num_steps = checks.positive_int("num_steps", num_steps)
    first_step = checks.positive_float("first_step", first_step)
    tolerance = checks.positive_float("tolerance", tolerance)
    num_probes = checks.positive_int("num_probes", num_probes)
    checks.one_of("probes", probes, PROBES)
    solver = _checked_solver(solver)
    X, _ = data_of_parts(model)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))

    set_apart(model)
    coordinates = Coordinates(model, X)
    optimizer = torch.optim.Rprop([coordinates.value], lr=first_step, step_sizes=(1e-4, 1.0))
    W = quicker = None
    solved = coordinates.value.clone()
    rise = _Rise()
    for step in range(1, num_steps + 1):
        Z = draw_probes(
            model, X, num_probes, probes, torch.Generator(generator.device).manual_seed(seed)
        )
        solution = _solve(model, Z, probes == "pathwise", solver, quicker, W)
        if not _is_solved(solution, solver):
            coordinates.move_to(solved)
            _warn_of_unsolved(step, solution)
            break
        W = solution.value
        quicker = solution.cheaper or quicker
        solved = coordinates.value.clone()
        gradient = coordinates.pull_gradient()
        rise.add(solved, gradient)
        if not bool(torch.isfinite(gradient).all()):
            raise FloatingPointError(
                f"The gradient is not finite at step {step}; the model is as it was. Use"
                " float64, or more noise."
            )
        gradient.neg_()  # Rprop descends
        optimizer.step()
        coordinates.write()
        if callback is not None:
            callback(step, rise.value)
        if rise.has_ended(tolerance):
            break
    return model


def _checked_solver(solver: Solver | None) -> Solver:
    if solver is None:
        # At 1e-2 a warm start is left to lag behind, and the fit to swing about its optimum
        return Auto(tolerance=3e-3, max_epochs=50.0)
    if not isinstance(solver, Solver):
        raise TypeError(
            f"`solver` must be a Solver such as CG() or Auto(), got {type(solver).__name__}"
            f" {solver!r}."
        )
    return solver


def draw_probes(
    model: ExactGP,
    X: Tensor,
    num_probes: int,
    kind: str,
    generator: torch.Generator,
    num_features: int = 2048,
) -> Tensor:
    """Return probes Z (n, s): random signs, or f(X) + ε of covariance H, each of own features."""
    if kind == "rademacher":
        return standard_normal((len(X), num_probes), X, generator).sign()
    noise = standard_normal((len(X), num_probes), X, generator)
    noise *= noise_at(model.likelihood, X).detach().sqrt().unsqueeze(-1)
    prior = PriorPaths.draw(
        model.covar_module,
        X.shape[1],
        num_probes,
        num_features=num_features,
        num_draws=num_probes,
        generator=generator,
        like=X,
        points=X,
    )
    return prior(X).T + noise


def _solve(
    model: ExactGP,
    Z: Tensor,
    symmetric: bool,
    solver: Solver,
    quicker: Solver | None,
    initial: Tensor | None,
) -> Solution:
    """Return the solutions behind a gradient, at first by the ``quicker`` solver if there is one;
    where they are not, go on with them a few times.
    """
    for own in (quicker or solver, *[solver] * (MOST_SOLVES - 1)):
        model.zero_grad()
        solution = backward_log_likelihood(
            model, Z, symmetric=symmetric, solver=own, initial=initial
        )
        if _is_solved(solution, solver) or not bool(torch.isfinite(solution.value).all()):
            break
        initial = solution.value
    return solution


def _is_solved(solution: Solution, solver: Solver, largest: float = 0.03) -> bool:
    """Return whether no relative residual exceeds the ``largest``, or the solver's aim if more."""
    asked = getattr(solver, "tolerance", None)
    enough = largest if asked is None else max(largest, asked)
    return solution.residual.max().item() <= enough  # false for NaN


def _warn_of_unsolved(step: int, solution: Solution) -> None:
    warn(
        f"fit_iterative stopped before step {step}: a linear system was solved to a relative"
        f" residual of {solution.residual.max().item():.1e} only, which nothing is learned from."
        " The model has the last hyperparameters whose systems were solved. Use float64, a solver"
        " with more epochs, or more noise to start from.",
        UnsolvedFitWarning,
    )


@torch.no_grad()
def backward_log_likelihood(
    model: ExactGP, Z: Tensor, *, symmetric: bool, solver: Solver, initial: Tensor | None = None
) -> Solution:
    """Add the gradient of the log marginal likelihood and the priors to the parameters of
    ``model``; return the solutions [v | U].

    Args:
        model: in evaluation mode.
        Z: (n, s) probes, with E[z zᵀ] = H if ``symmetric`` and I otherwise.
        initial: (n, 1 + s) warm start.
    """
    X = model.train_inputs[0]
    kernel = model.covar_module
    s = Z.shape[1]
    noise = noise_at(model.likelihood, X).detach().expand(len(X))
    system = KernelSystem(
        kernel_operator(kernel, X, memory_budget=getattr(model, "memory_budget", None)), noise
    )
    residuals = (model.train_targets - model.mean_module(X)).unsqueeze(1)
    solution = solver.solve(system, torch.cat([residuals, Z], dim=1), initial=initial)
    del system
    v = solution.value[:, :1]
    U = solution.value[:, 1:]
    if symmetric:
        factors = [v, U]
        weights = [v.new_full((1,), 0.5), v.new_full((s,), -0.5 / s)]
    # Uᵀ ∂H z = ¼ (z + u)ᵀ ∂H (z + u) − ¼ (z − u)ᵀ ∂H (z − u), for z and u made about equally large
    else:
        balance = (U.norm(dim=0) / Z.norm(dim=0)).clamp_min(torch.finfo(U.dtype).tiny).sqrt()
        factors = [v, Z * balance + U / balance, Z * balance - U / balance]
        weights = [v.new_full((1,), 0.5), v.new_full((s,), -0.125 / s), v.new_full((s,), 0.125 / s)]
    columns = torch.cat(factors, dim=1)
    weight = torch.cat(weights)
    backward_quadratic_form(kernel, X, columns, weight)
    with torch.enable_grad():
        fit = (
            (noise_at(model.likelihood, X) * (columns.square() @ weight)).sum()
            + (v.squeeze(1) * model.mean_module(X)).sum()
            + log_prior(model)
        )
        if fit.requires_grad:
            fit.backward()
    return solution


class _Rise:
    """The integral of a gradient along the steps, by the trapezium rule."""

    def __init__(self) -> None:
        self.value = self.best = 0.0
        self._since_best = 0
        self._last: Tensor | None = None

    def add(self, value: Tensor, gradient: Tensor) -> None:
        point = torch.stack([value, gradient]).double()
        if self._last is not None:
            self.value += (0.5 * (point[1] + self._last[1]) @ (point[0] - self._last[0])).item()
        self._last = point

    def has_ended(self, tolerance: float, patience: int = 5) -> bool:
        """Return whether for over ``patience`` calls there was no rise by the ``tolerance``."""
        if self.value > self.best + tolerance:
            self.best = self.value
            self._since_best = 0
        else:
            self._since_best += 1
        return self._since_best > patience


def backward_quadratic_form(kernel: Kernel, X: Tensor, U: Tensor, weights: Tensor) -> float:
    """Return q = Σ_c ω_c u_cᵀ k(X, X) u_c for U (n, s) and ``weights`` ω (s,), and add ∂q/∂θ to the
    gradients of those parameters of ``kernel`` that have ``requires_grad``, as ``backward`` does, a
    tile and its transpose at a time, in O(n) memory.

    Args:
        kernel: a GPyTorch kernel without a batch shape.
    """
    V = weights.unsqueeze(1) * U.T
    parameters = [parameter for parameter in kernel.parameters() if parameter.requires_grad]

    def sums(side: int) -> tuple[float, list[Tensor]]:
        q = 0.0
        gradients = [torch.zeros_like(parameter) for parameter in parameters]
        for i in spans(len(X), side):
            for j in spans(i.stop, side):
                twice = 1.0 if j.start == i.start else 2.0
                with torch.enable_grad():
                    part = twice * (kernel(X[i], X[j]).to_dense() * (U[i] @ V[:, j])).sum()
                q += part.item()
                if part.requires_grad:
                    found = torch.autograd.grad(
                        part, parameters, allow_unused=True, materialize_grads=True
                    )
                    for gradient, more in zip(gradients, found, strict=True):
                        gradient += more
        return q, gradients

    q, gradients = memory.halving(sums, tile_side(X.device), "A tile")
    if parameters:
        torch.autograd.backward(parameters, gradients)
    return q
