"""A SingleTaskGP that draws paths of its posterior, and never answers from what it kept for other
data or hyperparameters.

Notation: X (n, d) training inputs, s paths; weights as in :mod:`surrogates.functions.paths`.

From one round of an optimisation to the next, the mean's column goes on from its last weights, and
paths are drawn afresh, from zero: paths that are kept are no draws of the posterior any more, since
the data were chosen by them, and a coarse solve saves nothing (``docs/measured.md``, "What a round
takes over from the last").
"""

import sys
import threading
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Self

import gpytorch
import torch
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import SingleTaskGP
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, HadamardGaussianLikelihood
from torch import Tensor

from surrogates import checks, memory
from surrogates.functions.paths import BatchPaths, SamplePaths, Units
from surrogates.functions.spectra import Embedding, NoFeaturesError
from surrogates.models.data import (
    PATHS,
    Kept,
    StateKey,
    check_noise_of_values,
    data_sets,
    forget_caches,
    subset_outputs,
)
from surrogates.models.double import ExactPosterior, attached_copy
from surrogates.models.posterior import constant
from surrogates.operators.forms import StationaryKernel
from surrogates.rules.limits import check_range, noise_at
from surrogates.rules.rule import Draw, Rule
from surrogates.solvers.cholesky import Cholesky
from surrogates.solvers.solver import Solution, Solver

# Beyond, the exact covariance at 20 × 4 points, with gradients, costs more than that of 256 paths,
# and a few evaluations of the exact likelihood more than solves
EXACT_UP_TO = 2000
EXACT = "exact posterior"


class FreshGP(SingleTaskGP):
    """A ``SingleTaskGP`` whose posterior is that of its present hyperparameters, data and settings:
    GPyTorch's, or the paths that its rule draws.

    GPyTorch forgets what it has kept on ``train()`` and ``set_train_data``, but not when a
    hyperparameter is assigned; BoTorch transforms the inputs on ``eval()``, but not again when the
    transform changes, and loses inputs that are set in evaluation mode. Here, all that is kept lies
    in one place, with the key of the model that it was computed for, and is computed by one thread
    while others wait for it. All factorisations are direct.
    """

    solver: Solver | None
    num_features: int
    num_paths: int
    seed: int
    memory_budget: int | None
    solution: Solution | None = None
    # GPyTorch's slot for what `train()` and `set_train_data` reset
    prediction_strategy: Kept | None
    # What ``fit`` did to the hyperparameters, a ``FitAccount``; ``None`` before
    fit_account: Any = None
    # A batch of fantasies is what it was made as, however many points it has
    _stays_exact: bool = False
    _warm_mean_weights: tuple[Tensor, ...] = ()  # of every data set
    # That the data sets had in the model that this is a subset of
    _stream_numbers: tuple[int, ...] | None = None
    # Whether σ² was inferred before values of known noise came: it is still that of the first row
    _began_homoscedastic: bool = False
    _building: threading.RLock

    def __new__(cls, *arguments: Any, **settings: Any) -> Self:
        model = super().__new__(cls)
        model.__dict__["_building"] = threading.RLock()
        return model

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the lock, and graphs of data."""
        return {name: _leaf(value) for name, value in vars(self).items() if name != "_building"}

    @property
    @abstractmethod
    def rule(self) -> Rule:
        """What carries the weights, by the present settings."""

    @property
    def noise(self) -> Tensor:
        """The noise variances in standardised units: a scalar, or (n,) with ``train_Yvar`` or
        noise of tasks; after the batch shape if there is one.
        """
        return noise_at(self.likelihood, self.train_inputs[0]).detach()

    @property
    def _needs_noise(self) -> bool:
        """Whether values have to come with their noise variances, as those so far have."""
        known = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        return known and not self._began_homoscedastic

    def _noise_of_values(self, X: Tensor) -> Tensor:
        """Return σ² (..., k or 1, m) at transformed X (..., k, d) for values without one."""
        if isinstance(self.likelihood, HadamardGaussianLikelihood):
            return noise_at(self.likelihood, X).detach().unsqueeze(-1)
        noise: Tensor = self.likelihood.noise.detach()
        first = noise[..., :1].expand(*self.train_targets.shape[:-1], 1)
        return first.mT if self.num_outputs > 1 else first.unsqueeze(-1)

    def _apply_noise(
        self, X: Tensor, mvn: MultivariateNormal, observation_noise: bool | Tensor = False
    ) -> MultivariateNormal:
        check_noise_of_values(self.likelihood, observation_noise, "observation_noise")
        is_common = observation_noise is True and self._began_homoscedastic
        noise = self._noise_of_values(X) if is_common else observation_noise
        return super()._apply_noise(X, mvn, noise)

    def _extend_noise(self, model: "FreshGP", noise: Tensor | None) -> None:
        """Give ``model``, of the data and k further values, the noise of both: variances (..., k)
        of the latter, or σ² of all if ``None``.
        """
        if noise is None:
            return
        known = self.likelihood
        if not isinstance(known, FixedNoiseGaussianLikelihood):
            known = FixedNoiseGaussianLikelihood(self.noise.expand(self.train_targets.shape))
        model.likelihood = known.get_fantasy_likelihood(noise=noise)
        model._began_homoscedastic = not self._needs_noise

    def set_train_data(
        self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True
    ) -> None:
        """Replace the inputs, in the units of ``train_X`` whatever the mode, or the targets, in
        standardised units.

        Differs from BoTorch, which in evaluation mode takes inputs for transformed ones and forgets
        them in the next ``train()``.
        """
        with self._building:
            transformed = inputs is not None and self._has_transformed_inputs
            if transformed:
                self._revert_to_original_inputs()
            super().set_train_data(inputs, targets, strict)
            if transformed:
                self._set_transformed_inputs()

    def get_fantasy_model(
        self, inputs: Tensor, targets: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Self:
        """Return the exact model of appended data, which may be batches,
        on transformed inputs and in standardised units.
        """
        check_noise_of_values(self.likelihood, noise)
        if noise is None and self._began_homoscedastic:
            common = self._noise_of_values(inputs)
            noise = common.mT if self.num_outputs > 1 else common.squeeze(-1)
            noise = noise.expand(torch.broadcast_shapes(noise.shape, inputs.shape[:-1]))
        # By the variances, whose differences may be what is factorised
        variance = self.covar_module(self.train_inputs[0], diag=True).max().item()
        jitter = 10.0 * torch.finfo(torch.float64).eps * variance
        relative = gpytorch.settings.cholesky_jitter(float_value=jitter, double_value=jitter)
        with direct_algebra(), as_given(), relative:
            posterior = self._exact_posterior().with_data(inputs, targets, noise, **kwargs)
            model = self._without_state()
            model.train_inputs = tuple(X.to(posterior.dtype) for X in posterior.model.train_inputs)
            model.train_targets = posterior.model.train_targets.to(posterior.dtype)
            self._extend_noise(model, noise)
        # GPyTorch's own leaves out noise that is given where σ² is inferred
        posterior.model.prediction_strategy.likelihood = attached_copy(model.likelihood).double()
        model._stays_exact = True
        with model._kept() as parts:
            parts[EXACT] = posterior
        return model

    def subset_output(self, idcs: list[int]) -> Self:
        """Return a copy of the outputs ``idcs``, with their hyperparameters and their paths, and
        the hyperparameters that all share.

        Raises:
            NotImplementedError: for a mean whose parameters cannot be told apart.
            ValueError: if there are no such outputs.
        """
        m = self.num_outputs
        if not idcs or not set(idcs) <= set(range(m)):
            raise ValueError(f"`idcs` must be outputs below {m}, got {idcs}.")
        copy = self._without_state()
        if m == 1:
            return copy
        subset: Self = subset_outputs(copy, idcs)  # type: ignore[assignment]
        chosen = [
            first + t for first in range(0, self.train_targets.shape[:-1].numel(), m) for t in idcs
        ]
        subset._stream_numbers = tuple(self._numbers()[i] for i in chosen)
        if self._warm_mean_weights:
            subset._warm_mean_weights = tuple(self._warm_mean_weights[i] for i in chosen)
        with self._kept() as parts, subset._kept() as own:
            if PATHS in parts:
                own[PATHS] = subset._together([parts[PATHS].parts[i] for i in chosen])
        return subset

    def warm_start(self, previous: "FreshGP", *, scale: float = 1.0) -> Self:
        """Start the mean's next solve from ``previous``, a model of the first rows of the same
        data, and at new points from what solves their own rows; return this model.

        Paths start from zero all the same, as does the mean beyond 4096 new points.

        Args:
            scale: one unit of its targets in this model's units, if the caller standardises them.
        Raises:
            TypeError: if ``previous`` is another kind of model, or ``scale`` no number.
            ValueError: if the training inputs of ``previous`` are not the first of this model's, it
                has drawn no paths where this model solves for weights, or its weights are of other
                inducing points; if ``scale`` is not finite and above 0.
        """
        if not isinstance(previous, FreshGP):
            raise TypeError(
                "`previous` must be a PathwiseGP, such as that of the data so far, got"
                f" {type(previous).__name__}. Leave the warm start out where there is none."
            )
        scale = checks.positive_float("scale", scale, "Leave it out where the units are the same.")
        rule = self.rule
        rule.check_start(previous.rule)
        self.eval()
        previous.eval()
        _check_first_rows(previous.train_inputs[0], self.train_inputs[0])
        if not previous.has_weights:
            if not rule.takes_start:
                return self
            raise ValueError(
                "`previous` must have the weights of its mean, got a model that has drawn no paths,"
                " or has been converted since. Call `previous.paths(1)` before, or leave the warm"
                " start out."
            )
        ratios = scale * (previous._units.scale / self._units.scale).flatten()
        started = tuple(
            ratio * weights
            for ratio, weights in zip(ratios, previous._warm_mean_weights, strict=True)
        )
        if not all(bool(weights.isfinite().all()) for weights in started):
            raise ValueError(
                f"`scale` must leave the mean's weights finite, got {scale}. Give one unit of the"
                " targets of `previous` in the units of this model's."
            )
        self._warm_mean_weights = started
        return self

    def start_from(self, mean_weights: Tensor) -> Self:
        """Start the mean's next solve from weights (k, 1) of the first k points, in standardised
        units, such as the :attr:`mean_start` of an earlier model; return this model.

        Raises:
            TypeError: if the weights are no tensor of float32 or float64.
            ValueError: if the model has several outputs or data sets, or the weights have another
                shape or are not finite.
        """
        checks.floating_tensor(
            "mean_weights", mean_weights, "Give the `mean_start` of a model that has drawn paths."
        )
        self.eval()
        n = self.train_inputs[0].shape[-2]
        if (
            self.train_inputs[0].ndim > 2
            or mean_weights.ndim != 2
            or mean_weights.shape[1] != 1
            or not 1 <= len(mean_weights) <= n
        ):
            raise ValueError(
                f"`mean_weights` must have shape (k, 1) with 1 ≤ k ≤ n = {n}, for a model of one"
                f" output, got {tuple(mean_weights.shape)}. Use `warm_start` for several outputs."
            )
        self._warm_mean_weights = (mean_weights,)
        return self

    @property
    def has_weights(self) -> bool:
        """Whether the mean has weights for a solve to start from, as after drawing paths."""
        return bool(self._warm_mean_weights)

    @property
    def mean_start(self) -> Tensor | None:
        """The weights (k, 1) of the first k points that the mean's next solve starts from;
        ``None`` for zeros, and for several outputs or data sets.
        """
        return self._warm_mean_weights[0] if len(self._warm_mean_weights) == 1 else None

    def _numbers(self) -> tuple[int, ...]:
        """Return the number of every data set, row-major, which a subset of the outputs keeps."""
        return self._stream_numbers or tuple(range(self.train_targets.shape[:-1].numel()))

    def _streams(self, generator: torch.Generator) -> list[torch.Generator]:
        """Return each data set's generator, by its number: subsets of outputs keep their paths."""
        if not self.train_targets.shape[:-1] and self._stream_numbers is None:
            return [generator]
        first = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        return [
            torch.Generator(generator.device).manual_seed(first + number)
            for number in self._numbers()
        ]

    @torch.inference_mode(False)
    @torch.no_grad()
    def _draw(
        self,
        num_paths: int,
        generator: torch.Generator,
        *,
        own: slice | None = None,
        **options: Any,
    ) -> list[SamplePaths]:
        """Return the paths of every data set, or of each a share ``own``, on transformed inputs and
        in standardised units; their prior draws are independent. ``options`` are those of
        :class:`Draw`. Warn with UnsolvedWarning if the solver missed its tolerance.
        """
        checks.outside_transforms(
            "A model must draw its paths", "Call `posterior(X)` or `paths(s)` before."
        )
        rule = self.rule
        elements = data_sets(self)
        has_tiles = StationaryKernel.of(elements[0].kernel) is not None
        check_range(self.covar_module, self.train_inputs[0], takes_differences=has_tiles)
        warm: tuple[Tensor | None, ...] = self._warm_mean_weights
        if len(warm) != len(elements):
            warm = (None,) * len(elements)
        parts = []
        solutions = []
        for data, weights, stream in zip(elements, warm, self._streams(generator), strict=True):
            wanted = Draw(data, num_paths, stream, warm=weights, **options)
            paths, solution = rule.draw(wanted) if own is None else rule.draw_share(wanted, own)
            parts.append(paths)
            solutions.append(solution)
        self.solution = _joined(solutions)
        if self.solution is not None:
            self.solution.warn_if_unsolved("The model's mean and paths")
        self._warm_mean_weights = tuple(part.mean_weights for part in parts)
        return parts

    def _posterior_paths(self) -> SamplePaths | BatchPaths:
        """Return the paths behind ``posterior``, kept until the model changes."""
        self._check_constant_data("A posterior of paths has")
        with self._kept() as parts:
            if PATHS not in parts:
                generator = torch.Generator().manual_seed(self.seed)
                drawn = self._draw(self.num_paths, generator, spanning=True)
                parts[PATHS] = self._together(drawn)
            paths: SamplePaths | BatchPaths = parts[PATHS]
        return paths

    def _check_constant_data(self, what: str) -> None:
        """Require data without gradients, which paths lose; ``what`` begins the message."""
        for name in self._varying_data():
            raise ValueError(
                f"`{name}` must not require gradients. {what} none in the data: give"
                f" `{name}.detach()`, or take the exact posterior of"
                " `PathwiseGP(..., solver=Cholesky())`."
            )

    def _varying_data(self) -> list[str]:
        """Return the names of the data that require gradients; none while gradients are off."""
        given = {"train_X": self._given_inputs, "train_Y": self.train_targets}
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            given["train_Yvar"] = self.likelihood.noise_covar.noise
        is_on = torch.is_grad_enabled()
        return [name for name, data in given.items() if is_on and data.requires_grad]

    def _together(self, parts: list[SamplePaths]) -> SamplePaths | BatchPaths:
        batch_shape = self.train_targets.shape[:-1]
        return BatchPaths(tuple(parts), batch_shape) if batch_shape else parts[0]

    @property
    def _learns(self) -> bool:
        """Whether gradients in hyperparameters are asked for, and no update has copied them."""
        is_asked = gpytorch.settings.detach_test_caches.off() and torch.is_grad_enabled()
        return is_asked and self._is_exact and not self._stays_exact

    def _exact_posterior(self, *, learns: bool = False) -> ExactPosterior:
        """Return GPyTorch's posterior in standardised units, kept until the model changes; one with
        gradients in data or, if it ``learns``, hyperparameters is used once, as its graph is. Raise
        MemoryError if the matrices do not fit in free memory.
        """
        is_kept = not learns and not self._varying_data()
        with self._kept() as parts:
            posterior: ExactPosterior | None = parts.get(EXACT)
            if posterior is None or not (is_kept or self._stays_exact):
                X = self.train_inputs[0]
                check_range(self.covar_module, X.double(), takes_differences=False)
                memory.require(
                    memory.squares_bytes(X.shape[:-1].numel() * X.shape[-2]),
                    X.device,
                    f"The exact posterior of {X.shape[-2]} points",
                    "Use an iterative solver such as CG().",
                )
                posterior = ExactPosterior.of(self, learns)
                if is_kept:
                    parts[EXACT] = posterior
        return posterior

    @property
    def _units(self) -> Units:
        return Units.of(
            getattr(self, "outcome_transform", None),
            self.train_targets.shape[:-1],
            self.train_targets,
        )

    @property
    def _is_exact(self) -> bool:
        """Whether ``posterior`` is GPyTorch's own."""
        if not self.rule.is_exact:
            return False
        if self.solver is not None:
            return isinstance(self.solver, Cholesky)
        X = self.train_inputs[0]
        if X.shape[-2] <= EXACT_UP_TO or self._stays_exact:
            return True
        with suppress(NoFeaturesError):
            Embedding.of(self.covar_module, X)
            return False
        return True

    def _state_key(self) -> StateKey:
        return StateKey.of(
            self, self.solver, self.num_features, self.num_paths, self.seed, self.memory_budget
        )

    @contextmanager
    def _kept(self) -> Iterator[dict[str, Any]]:
        """Let one thread at a time see and extend what is kept of the present model alone."""
        with self._building, ordinary_tensors():
            kept = self.prediction_strategy
            if kept is None or not self._state_key().matches(kept.key):
                forget_caches(self.covar_module)
                kept = self.prediction_strategy = Kept(self._state_key().frozen())
            yield kept.parts

    def _without_state(self) -> Self:
        forget_caches(self.covar_module)
        copy = attached_copy(self)
        copy.prediction_strategy = None
        copy._warm_mean_weights = ()
        return copy

    @property
    def _given_inputs(self) -> Tensor:
        if not self._has_transformed_inputs:
            return self.train_inputs[0]
        return self._original_train_inputs  # type: ignore[return-value]

    def _set_transformed_inputs(self) -> None:
        with self._building, ordinary_tensors():
            super()._set_transformed_inputs()
            if not self._has_transformed_inputs:
                return
            # The transform may have changed since, and BoTorch leaves out gradients
            with nullcontext() if self._learns else constant(self.input_transform):
                X = self.input_transform.preprocess_transform(self._given_inputs)
            if X.shape == self.train_inputs[0].shape:
                self.train_inputs = (X,)

    def _revert_to_original_inputs(self) -> None:
        with self._building:
            if self._has_transformed_inputs:
                inputs = self._given_inputs
                # Before the inputs are set, which must not transform them again
                self._has_transformed_inputs = False
                self.set_train_data(inputs, strict=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        self.prediction_strategy = None
        self._warm_mean_weights = ()
        if self._has_transformed_inputs:  # GPyTorch moves the transformed ones alone
            self._original_train_inputs = fn(self._given_inputs)
        return super()._apply(fn, *args, **kwargs)


@contextmanager
def ordinary_tensors() -> Iterator[None]:
    """Make ordinary tensors in inference mode, too: gradients cannot pass its own."""
    is_on = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(is_on):
        yield


@memory.SharedContext
@contextmanager
def direct_algebra() -> Iterator[None]:
    """Let GPyTorch factorise any size and keep graphs, by settings that all threads share."""
    with (
        gpytorch.settings.detach_test_caches(False),
        gpytorch.settings.fast_computations(False, False, False),
        gpytorch.settings.max_cholesky_size(sys.maxsize),
    ):
        yield


@contextmanager
def as_given() -> Iterator[None]:
    """Take data without BoTorch's advice to use float64 or GPyTorch's bound on known noise."""
    with (
        warnings.catch_warnings(),
        gpytorch.settings.min_fixed_noise(float_value=0.0, double_value=0.0),
    ):
        warnings.filterwarnings("ignore", "The model inputs are of type", InputDataWarning)
        yield


def _leaf(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_leaf, value))
    return value.detach() if isinstance(value, Tensor) and not value.is_leaf else value


def _check_first_rows(earlier: Tensor, X: Tensor) -> None:
    """Require training inputs ``earlier`` (*batch, k, d) that are the first of X (*batch, n, d)."""
    what = "`previous` must have been trained on the first rows of this model's data"
    n, d = X.shape[-2:]
    k = earlier.shape[-2]
    if earlier.shape[:-2] != X.shape[:-2] or earlier.shape[-1] != d:
        required = ", ".join(map(str, (*X.shape[:-2], "k", d)))
        raise ValueError(
            f"{what}, of shape ({required}) where several outputs are an axis in front, got"
            f" {tuple(earlier.shape)}. Give a model of the same inputs and outputs."
        )
    if k > n:
        raise ValueError(
            f"{what}, at most n = {n} of them, got {k}. Build this model with all rows of"
            " `previous`, or leave the warm start out."
        )
    differs = (earlier != X[..., :k, :]).any(-1).reshape(-1, k).any(0)
    if differs.any():
        raise ValueError(
            f"{what}, got {int(differs.sum())} other rows of {k}, the first of them row"
            f" {int(differs.nonzero()[0])}. Keep the rows in their order, new ones after them, and"
            " the settings of an input transform."
        )


def _joined(solutions: list[Solution | None]) -> Solution | None:
    done = [solution for solution in solutions if solution is not None]
    if len(done) < 2:
        return done[0] if done else None
    errors = [solution.error for solution in done if solution.error is not None]
    return Solution(
        value=torch.cat([solution.value for solution in done], dim=1),
        residual=torch.cat([solution.residual for solution in done]),
        converged=torch.cat([solution.converged for solution in done]),
        steps=torch.cat([solution.steps for solution in done]),
        epochs=sum(solution.epochs for solution in done),
        seconds=sum(solution.seconds for solution in done),
        note="; ".join(dict.fromkeys(solution.note for solution in done if solution.note)),
        error=torch.cat(errors) if len(errors) == len(done) else None,
    )
