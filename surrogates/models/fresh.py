"""A SingleTaskGP that never answers from what it kept for other data or hyperparameters."""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Self

import gpytorch
import torch
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import SingleTaskGP
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from surrogates import memory
from surrogates.functions.units import Units
from surrogates.models.conditioning import StateKey
from surrogates.models.outputs import subset_outputs

SQUARES_HELD = 4  # copies of an (n, n) matrix that GPyTorch's exact posterior holds at once


class FreshGP(SingleTaskGP):
    """A ``SingleTaskGP`` whose posterior is that of its present hyperparameters, data and settings.

    GPyTorch forgets what it has kept on ``train()`` and ``set_train_data``, but not when a
    hyperparameter is assigned; BoTorch transforms the inputs on ``eval()``, but not again when the
    transform changes, and loses inputs that are set in evaluation mode. Here, what is kept carries
    the key of the model that it belongs to. All factorisations are direct.
    """

    # GPyTorch's slot for what `train()` and `set_train_data` must reset; what lies here has a `key`
    prediction_strategy: Any
    # A batch of fantasies is what it was made as, however many points it has
    _stays_exact: bool = False

    @property
    def noise(self) -> Tensor:
        """The noise variances in standardised units: a scalar, or (n,) with ``train_Yvar``;
        after the batch shape if there is one.
        """
        noise: Tensor = self.likelihood.noise.detach()
        return noise.reshape(()) if noise.numel() == 1 else noise

    def set_train_data(
        self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True
    ) -> None:
        """Replace the inputs, in the units of ``train_X`` whatever the mode, or the targets, in
        standardised units.

        Differs from BoTorch, which in evaluation mode takes inputs for transformed ones and forgets
        them in the next ``train()``.
        """
        transformed = inputs is not None and self._has_transformed_inputs
        if transformed:
            self._revert_to_original_inputs()
        super().set_train_data(inputs, targets, strict)
        if transformed:
            self._set_transformed_inputs()

    def get_fantasy_model(self, inputs: Tensor, targets: Tensor, **kwargs: Any) -> Self:
        """Return the exact model of appended data, which may be batches,
        on transformed inputs and in standardised units.
        """
        with direct_algebra(), as_given():
            model: Self = super().get_fantasy_model(inputs, targets, **kwargs)
        (inputs,) = model.train_inputs
        model.train_inputs = (inputs,)  # GPyTorch leaves a list
        model._stays_exact = True
        model.prediction_strategy.key = model._state_key().frozen()
        return model

    def subset_output(self, idcs: list[int]) -> Self:
        """Return a copy of the outputs ``idcs``, with the hyperparameters of theirs, and those that
        all share.

        Raises:
            NotImplementedError: for a mean whose parameters cannot be told apart.
            ValueError: if there are no such outputs.
        """
        if not idcs or not set(idcs) <= set(range(self.num_outputs)):
            raise ValueError(f"`idcs` must be outputs below {self.num_outputs}, got {idcs}.")
        model = self._without_state()
        return model if self.num_outputs == 1 else subset_outputs(model, idcs)  # type: ignore[return-value]

    def _exact_distribution(self, *inputs: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Return GPyTorch's posterior in standardised units.

        Raises:
            MemoryError: if the matrices do not fit in free memory.
        """
        key = self._drop_stale_state()
        if key is None:
            key = self._state_key().frozen()
            X = self.train_inputs[0]
            num_bytes = SQUARES_HELD * X.shape[:-1].numel() * X.shape[-2] * X.element_size()
            memory.require(
                num_bytes,
                X.device,
                f"The exact posterior of {X.shape[-2]} points",
                "Use an iterative solver such as CG().",
            )
        with direct_algebra():
            distribution = SingleTaskGP.__call__(self, *inputs, **kwargs)
        self.prediction_strategy.key = key
        return distribution

    @property
    def _units(self) -> Units:
        return Units.of(
            getattr(self, "outcome_transform", None),
            self.train_targets.shape[:-1],
            self.train_targets,
        )

    def _state_settings(self) -> tuple[Any, ...]:
        """Return what the posterior depends on besides tensors, mean and kernel."""
        return ()

    def _state_key(self) -> StateKey:
        return StateKey.of(self, *self._state_settings())

    def _drop_stale_state(self) -> StateKey | None:
        """Forget what is kept unless it is of the present model;
        return the key that it has then.
        """
        kept: StateKey | None = getattr(self.prediction_strategy, "key", None)
        if kept is not None and self._state_key().matches(kept):
            return kept
        self.prediction_strategy = None
        return None

    def _without_state(self) -> Self:
        """Return a copy that has kept nothing."""
        state = self.prediction_strategy
        self.prediction_strategy = None
        try:
            return deepcopy(self)
        finally:
            self.prediction_strategy = state

    @property
    def _given_inputs(self) -> Tensor:
        """The training inputs before the input transform."""
        if not self._has_transformed_inputs:
            return self.train_inputs[0]
        original: Tensor = self._original_train_inputs  # type: ignore[assignment]
        return original

    def _set_transformed_inputs(self) -> None:
        super()._set_transformed_inputs()
        if self._has_transformed_inputs:  # the transform may have changed since
            with torch.no_grad():
                X = self.input_transform.preprocess_transform(self._given_inputs)
            if X.shape == self.train_inputs[0].shape and not torch.equal(X, self.train_inputs[0]):
                self.train_inputs = (X,)

    def _revert_to_original_inputs(self) -> None:
        if self._has_transformed_inputs:
            inputs = self._given_inputs
            # Before the inputs are set, which must not transform them again
            self._has_transformed_inputs = False
            self.set_train_data(inputs, strict=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Self:
        self.prediction_strategy = None
        if self._has_transformed_inputs:  # GPyTorch moves the transformed ones alone
            self._original_train_inputs = fn(self._given_inputs)
        return super()._apply(fn, *args, **kwargs)


@contextmanager
def direct_algebra() -> Iterator[None]:
    """Let GPyTorch factorise, whatever the size and the global settings."""
    with (
        gpytorch.settings.fast_computations(False, False, False),
        gpytorch.settings.max_cholesky_size(sys.maxsize),
    ):
        yield


@contextmanager
def as_given() -> Iterator[None]:
    """Take data as they are: without BoTorch's advice to use float64,
    nor GPyTorch's lower bound on known noise.
    """
    with (
        warnings.catch_warnings(),
        gpytorch.settings.min_fixed_noise(float_value=0.0, double_value=0.0),
    ):
        warnings.filterwarnings("ignore", "The model inputs are of type", InputDataWarning)
        yield
