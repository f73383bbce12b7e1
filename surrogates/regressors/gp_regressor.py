"""Gaussian-process regression of any size as a scikit-learn estimator, in NumPy arrays."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
import torch
from botorch.models.transforms.input import Normalize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.settings import validate_input_scaling
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from surrogates import checks
from surrogates.fitting.choice import fit
from surrogates.models.fresh import EXACT_UP_TO
from surrogates.models.pathwise import PathwiseGP
from surrogates.restoring import restored_on_failure
from surrogates.solvers.solver import Solver

MOST_JOINT = 20_000  # points of a covariance matrix that is returned
ROUNDING = 10.0 * np.finfo(np.float64).eps  # of a mean, beside the largest value

Array = NDArray[np.floating[Any]]


@dataclass(eq=False, repr=False)
class GPRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Gaussian-process regression on data of any size, with the interface of scikit-learn's
    ``GaussianProcessRegressor``.

    A :class:`PathwiseGP` on inputs scaled to the unit cube and standardised targets, with
    hyperparameters learnt by :func:`fit`: exact up to 2000 data, paths by iterative solvers beyond.
    Several columns of y are independent Gaussian processes. Predictions have the dtype of the
    training inputs: float32, if they are, else float64. Up to 2000 data all arithmetic is float64.

    Args:
        kernel: a GPyTorch kernel of the scaled inputs; ``None`` for Matérn-5/2 with a lengthscale
            for every input and priors that grow with their number. It is copied, never changed.
        noise_variance: known variance of the targets' noise, one number or an array of the shape of
            y; ``None`` to learn one number.
        optimize: learn hyperparameters; if not, the kernel's own are taken, in units of scaled
            inputs and standardised targets.
        solver: ``Cholesky()``, ``CG()``, ``SDD()``, …; ``None`` for the model's choice.
        num_paths: of the variance beyond 2000 data; its standard deviation has a relative error of
            about (2 num_paths)^-1/2.
        num_features: random features of the paths.
        random_state: seed of features and paths, and of the parts of data that the fit draws.
        callback: called after every step of the fit with its number and objective.

    Attributes:
        model_: the fitted :class:`PathwiseGP`, on X and standardised y.
        kernel_: its kernel.
        target_mean_, target_scale_: (m,), what y is standardised by: its mean and standard
            deviation; the scale of a column of one value is 1.
        noise_variance_: of the targets, in squared units of y, a number or one for each output;
            ``None`` if ``noise_variance`` is an array.
        fit_account_: what the fit tried and chose; ``None`` without one.
        n_features_in_, feature_names_in_: of X.

    Raises:
        TypeError, ValueError: when fitting, for data that are not finite numbers, or arguments that
            do not fit them.
    """

    kernel: Kernel | None = None
    _: KW_ONLY
    noise_variance: float | ArrayLike | None = None
    optimize: bool = True
    solver: Solver | None = None
    num_paths: int = 256
    num_features: int = 2048
    random_state: int | np.random.RandomState | None = 0
    callback: Callable[[int, float], None] | None = None

    @restored_on_failure
    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to X (n, d) and y (n,) or (n, m).

        Warns:
            NoSignalWarning: if nothing was found in y but noise; ``fit_account_`` says why.
        """
        inputs, targets = validate_data(
            self, X, y, dtype=[np.float64, np.float32], multi_output=True, y_numeric=True
        )
        self._dtype = inputs.dtype
        self._target_shape = targets.shape[1:]
        targets = np.asarray(targets, np.float64).reshape(len(inputs), -1)
        self.target_mean_, self.target_scale_ = _units(targets)
        train_X = checks.of_array(inputs)
        if len(inputs) <= EXACT_UP_TO:
            train_X = train_X.double()
        train_Y = checks.of_array((targets - self.target_mean_) / self.target_scale_).to(train_X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with validate_input_scaling(False):  # y is standardised, unless it is constant
            model = PathwiseGP(
                train_X,
                train_Y,
                self._known_noise(train_Y),
                covar_module=self._covar_module(train_X, train_Y),
                outcome_transform=None,
                input_transform=_unit_cube(train_X),
                solver=self.solver,
                num_paths=self.num_paths,
                num_features=self.num_features,
                seed=seed,
            )
        if self.optimize:
            generator = torch.Generator().manual_seed(seed)
            fit(model, generator=generator, callback=self.callback)
        self.model_ = model.eval()
        self.kernel_ = model.covar_module
        self.fit_account_ = getattr(model, "fit_account", None)
        self.noise_variance_ = self._noise_in_units_of_y()
        return self

    def predict(
        self, X: ArrayLike, return_std: bool = False, return_cov: bool = False
    ) -> Array | tuple[Array, Array]:
        """Return the posterior mean of the function, without noise, at X (q, d), and with it its
        standard deviation or its covariance if asked for.

        Returns:
            (q,), or (q, m) for y of shape (n, m); the standard deviation has the same shape, the
            covariance (q, q), or (q, q, m). ``noise_variance_`` is not in them.

        Raises:
            NotFittedError: before ``fit``.
            ValueError: if both are asked for, or X does not fit.
            MemoryError: for the covariance of more than 20 000 points.
        """
        if return_std and return_cov:
            raise ValueError(
                "`return_std` and `return_cov` must not both be True: the standard deviation is"
                " the root of the covariance's diagonal."
            )
        points = self._points(X)
        if return_cov:
            return self._joint(points)
        with torch.no_grad():
            # Joint posteriors, of whose covariance the diagonal is read
            posteriors = [self.model_.posterior(block) for block in points.split(EXACT_UP_TO)]
            mean = torch.cat([posterior.mean for posterior in posteriors])
            if not return_std:
                return self._in_units_of_y(mean)
            variance = torch.cat([posterior.variance for posterior in posteriors])
        deviation = self._shaped(variance.double().sqrt().numpy() * self.target_scale_)
        return self._in_units_of_y(mean), deviation

    def sample_y(
        self, X: ArrayLike, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0
    ) -> Array:
        """Return the values at X (q, d) of functions drawn from the posterior, without noise.

        Returns:
            (q, n_samples), or (q, m, n_samples) for y of shape (n, m).

        Raises:
            NotFittedError, ValueError: as in ``predict``, and if the kernel has no random features.
        """
        points = self._points(X)
        n_samples = checks.positive_int("n_samples", n_samples)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        paths = self.model_.paths(n_samples, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            samples = paths(points).reshape(n_samples, len(points), -1)  # (s, q, m)
        return np.moveaxis(np.stack([self._in_units_of_y(sample) for sample in samples]), 0, -1)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags

    def _points(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self, "model_")
        X = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return checks.of_array(X).to(self.model_.train_targets)

    def _in_units_of_y(self, values: Tensor) -> Array:
        """Return standardised values (q, m) in the units, shape and dtype of predictions."""
        return self._shaped(values.double().numpy() * self.target_scale_ + self.target_mean_)

    def _shaped(self, values: Array) -> Array:
        """Return (q, m) as (q,) where y was (n,), in the dtype of predictions."""
        return values.reshape(-1, *self._target_shape).astype(self._dtype)

    def _joint(self, points: Tensor) -> tuple[Array, Array]:
        q = len(points)
        if q > MOST_JOINT:
            raise MemoryError(
                f"`X` must have at most {MOST_JOINT} points for `return_cov`, got {q}. Ask for"
                " `return_std`, or for parts."
            )
        outputs = range(self.model_.num_outputs)
        with torch.no_grad():
            # One by one: they do not covary
            own: list[Any] = [self.model_.posterior(points, output_indices=[i]) for i in outputs]
            mean = torch.cat([output.mean for output in own], -1)
            joint = torch.stack([output.distribution.covariance_matrix for output in own], -1)
        covariance = joint.double().numpy() * self.target_scale_**2
        shape = (q, q, *self._target_shape)
        return self._in_units_of_y(mean), covariance.reshape(shape).astype(self._dtype)

    def _covar_module(self, train_X: Tensor, train_Y: Tensor) -> Kernel:
        if self.kernel is not None:
            if not isinstance(self.kernel, Kernel):
                raise TypeError(
                    "`kernel` must be a GPyTorch kernel such as MaternKernel(), or None, got"
                    f" {type(self.kernel).__name__}."
                )
            return deepcopy(self.kernel).to(train_X)
        num_outputs = train_Y.shape[-1]
        with train_X.device:
            return get_covar_module_with_dim_scaled_prior(
                ard_num_dims=train_X.shape[-1],
                batch_shape=torch.Size([num_outputs] if num_outputs > 1 else []),
                use_rbf_kernel=False,
            ).to(train_X)

    def _known_noise(self, train_Y: Tensor) -> Tensor | None:
        if self.noise_variance is None:
            return None
        given = np.asarray(self.noise_variance)
        variances = check_array(np.atleast_1d(given), ensure_2d=False, input_name="noise_variance")
        shape = (len(train_Y), *self._target_shape)
        if given.ndim and given.shape != shape:
            raise ValueError(
                f"`noise_variance` must be a number or of the shape of `y`, {shape}, got"
                f" {given.shape}."
            )
        if (variances < 0).any():
            raise ValueError(
                f"`noise_variance` must be at least 0, got {variances.min():g}. Use 0 for exact"
                " targets, or None to learn it."
            )
        known = variances.reshape(-1, train_Y.shape[-1] if given.ndim else 1)
        return checks.of_array(known / self.target_scale_**2).to(train_Y).expand_as(train_Y)

    def _noise_in_units_of_y(self) -> float | Array | None:
        if self.noise_variance is not None:
            known = np.asarray(self.noise_variance)
            return None if known.ndim else known.item()
        noise = self.model_.likelihood.noise.detach().double().reshape(-1).numpy()
        variances: Array = noise * self.target_scale_**2
        return variances if self._target_shape else variances.item()


def _units(targets: Array) -> tuple[Array, Array]:
    """Return the columns' means and standard deviations (m,); 1 where only rounding differs."""
    # Sums and squares of numbers up to 1 neither overflow nor vanish
    largest = np.abs(targets).max(0)
    largest = np.where(largest > 0.0, largest, 1.0)
    mean = (targets / largest).mean(0)
    gaps = targets / largest - mean
    width = np.abs(gaps).max(0)
    varies = width > ROUNDING
    spread = np.sqrt(np.square(gaps / np.where(varies, width, 1.0)).sum(0) / max(1, len(gaps) - 1))
    return mean * largest, np.where(varies, spread * width * largest, 1.0)


def _unit_cube(X: Tensor) -> Normalize:
    """Return the transform of X to the unit cube; a column of one value keeps its scale."""
    low, high = X.aminmax(dim=0, keepdim=True)
    width = torch.where(high > low, high - low, 1.0)
    cube = Normalize(X.shape[-1], bounds=torch.cat([low, high]))
    cube.load_state_dict({"_offset": low, "_coefficient": width})  # low + 1 may be rounded to low
    return cube
