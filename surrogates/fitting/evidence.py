"""What all data say of hyperparameters: predictive densities of left-out data.

Notation: b random data are the centres of b blocks, each of the m data nearest to its centre.

Each datum is predicted from the others of its block, the noise included. This is a proper score,
whatever the blocks, and costs O(b m³). A block is large, since the posterior of a thousand data
errs as that of all does; that of a hundred neighbours follows a function whatever the lengthscales.
"""

import math
from typing import NamedTuple

import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from surrogates.fitting.batched import BatchedGP, log_normal
from surrogates.fitting.neighbours import Neighbours
from surrogates.operators.forms import batched_cholesky
from surrogates.rules.hyperparameters import training_data
from surrogates.rules.limits import INFERRED_NOISE, RESOLUTION, assign, lengthscale_limits

NEEDED = 2.0  # standard errors by which one model must predict better than another to replace it


class Difference(NamedTuple):
    """The mean of paired differences of log densities, in nats a point, and its standard error."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.error:.4f}"


class Misfit(NamedTuple):
    """What the errors of predictions say against a model.

    Attributes:
        nearer: (p,) whether the error of the nearest other point is nearer to a point's own than
            that of the 30th; of the half of all points whose nearest are nearest, which say most of
            short distances, without those that are there twice. If errors are noise, half are,
            whatever the law of the noise, and if smooth trends are left in them, too; more if a
            function varies over distances that are short for the model.
        missed: (q,) whether the mean of ten neighbouring data lies outside its 95 % band, given all
            the data around. If the model is right, 5 % are.
        distance: to the nearest other point, that a quarter of the points have that are not there
            twice, in ranges of the inputs; 0 without such points.
    """

    nearer: Tensor
    missed: Tensor
    distance: float


def paired_difference(ours: Tensor, theirs: Tensor) -> Difference:
    """Return by how much the log densities ``ours`` (q,) exceed ``theirs``, of the same points."""
    pairs = ours - theirs
    return Difference(pairs.mean().item(), pairs.std().item() / math.sqrt(len(pairs)))


@torch.no_grad()
def gain_over_noise(gp: BatchedGP, index: Tensor) -> float:
    """Return by how much the log marginal likelihood of the data ``index`` (1, m) exceeds that of
    noise about their mean alone, in nats.
    """
    own = gp.y[index]
    white = log_normal(own, own.mean(), _variance(own)).sum()
    return -gp.negative_log_likelihood(index).item() - white.item()


def gained_by_chance(k: int) -> float:
    """Return the nats that fitting k hyperparameters hardly ever gains on noise alone: the mean of
    χ²_k / 2 and two of its standard deviations.

    References:
        Wilks (1938), "The Large-Sample Distribution of the Likelihood Ratio for Testing Composite
        Hypotheses".
    """
    return 0.5 * k + 2.0 * math.sqrt(0.5 * k)


def num_learned(module: torch.nn.Module) -> int:
    """Return the number of hyperparameters of ``module`` that are learned."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


class Evidence:
    """Compares hyperparameters of one model by the same left-out data.

    Args:
        block_size: m; of so few data, all are one block.
        most_blocks: b. Their points are the nearest by the lengthscales of the first model that is
            judged.
        num_points: random data of all places, at most, that tell in :meth:`gain` of a signal,
            which may be constant within a block.
    """

    def __init__(
        self,
        model: SingleTaskGP,
        generator: torch.Generator,
        block_size: int = 1000,
        most_blocks: int = 8,
        num_points: int = 2000,
    ):
        y = training_data(model)[1]
        self._y = y.double()
        order = torch.randperm(len(y), generator=generator, device=generator.device)
        self._points = order[:num_points].to(y.device)
        self._mean = self._y.mean()
        self._variance = _variance(self._y)
        self._size = min(block_size, len(y))
        self._centres = self._points[: most_blocks if self._size < len(y) else 1]
        self._blocks: Tensor | None = None  # (b, m) indices
        self._judged: Tensor  # (b, m), which of the data are in no block before

    @property
    def white(self) -> Tensor:
        """Log densities (p,) of what was judged if all of the data were noise about their mean."""
        assert self._blocks is not None, "nothing was judged"
        return log_normal(self._y[self._blocks[self._judged]], self._mean, self._variance)

    def _blocks_of(self, gp: BatchedGP) -> Tensor:
        """Return the blocks, the same for every model after the first."""
        if self._blocks is None:
            nearest = Neighbours(gp.X, gp.covar_module).of(gp.X[self._centres], self._size)
            order = nearest.flatten().argsort(stable=True)
            again = nearest.flatten()[order].diff() == 0
            judged = torch.ones_like(order, dtype=torch.bool)
            judged[order[1:][again]] = False
            self._blocks = nearest.reshape(-1, self._size)
            self._judged = judged.view_as(self._blocks)
        return self._blocks

    @torch.no_grad()
    def log_densities(self, model: SingleTaskGP) -> Tensor:
        """Return (p,) log densities of the data of all blocks, each given the others of its block.

        Raises:
            FloatingPointError: if a kernel matrix is not positive definite.
        """
        gp = BatchedGP(model)
        parts = self._blocks_of(gp).split(1)
        return torch.cat([gp.leave_one_out(block) for block in parts])[self._judged]

    @torch.no_grad()
    def misfit(self, model: SingleTaskGP, fewest: int = 400) -> Misfit:
        """Return what the errors of predictions in the blocks say against ``model``.

        With P = K⁻¹ of a block and α = P r, the data C, left out together, exceed their predictions
        by P_CC⁻¹ α_C, with the covariance P_CC⁻¹.

        Raises:
            FloatingPointError: if a kernel matrix is not positive definite.
        """
        gp = BatchedGP(model)
        blocks = self._blocks_of(gp)
        width = gp.X.amax(0) - gp.X.amin(0)
        nearer, missed, nearest = [], [], []
        for block, counts in zip(blocks, self._judged, strict=True):
            inverse = torch.cholesky_inverse(batched_cholesky(gp.with_noise(block[None])))[0]
            alpha = inverse @ gp.residuals(block[None])[0]
            Z = gp.X[block] / torch.where(width > 0, width, 1.0)
            apart = torch.cdist(Z, Z, compute_mode="donot_use_mm_for_euclid_dist")
            distance, near = apart.topk(min(31, self._size), largest=False)
            error = alpha / inverse.diagonal()
            near_error, far_error = error[near[:, 1]], error[near[:, -1]]
            nearer.append(((error - near_error).abs() < (error - far_error).abs())[counts])
            nearest.append(distance[counts, 1])
            left_out = near[::10, :10][counts[::10]]
            columns = torch.stack([alpha[left_out], torch.ones_like(alpha[left_out])], -1)
            own = inverse[left_out.unsqueeze(2), left_out.unsqueeze(1)]
            excess, variance = torch.linalg.solve(own, columns).sum(1).unbind(-1)
            missed.append(excess.abs() > 1.96 * variance.sqrt())
        distances = torch.cat(nearest)
        apart = distances > RESOLUTION
        order = distances[apart].argsort(stable=True)
        near_ones = torch.cat(nearer)[apart][order[: max(fewest, len(order) // 2)]]
        quarter = distances[apart][order[len(order) // 4 :][:1]].sum().item()
        return Misfit(near_ones, torch.cat(missed), quarter)

    def gain(self, model: SingleTaskGP) -> float:
        """Return the log marginal likelihood of the points less that of noise alone, in nats."""
        return gain_over_noise(BatchedGP(model), self._points.unsqueeze(0))

    @torch.no_grad()
    def silence(self, model: SingleTaskGP, faintest: float = 1e-4) -> bool:
        """Make all of the data noise about their mean; return whether the model can say so.

        Lengthscales become the longest of their range, output scales the ``faintest`` share of the
        variance, as far as their bounds allow.
        """
        likelihood = model.likelihood
        kernel = model.covar_module
        limits = lengthscale_limits(kernel, model.train_inputs[0])
        learned = [part.raw_lengthscale.requires_grad for part, _, _ in limits]
        noise_is_learned = (
            isinstance(likelihood, INFERRED_NOISE)
            and likelihood.raw_noise.requires_grad
            # Targets that hardly vary leave no noise that the model could have
            and likelihood.noise_covar.raw_noise_constraint.check(self._variance)
        )
        if not (noise_is_learned and learned and all(learned)):
            return False
        constant = getattr(model.mean_module, "raw_constant", None)
        if constant is not None and constant.requires_grad:
            bounds = model.mean_module.constraint_for_parameter_name("raw_constant")
            if bounds is not None and not bounds.lower_bound < self._mean < bounds.upper_bound:
                return False
            model.mean_module.constant = self._mean.to(constant)
        for part, _, upper in limits:
            assign(part, "lengthscale", upper)
        for part in kernel.modules():
            if isinstance(part, ScaleKernel) and part.raw_outputscale.requires_grad:
                assign(part, "outputscale", faintest * self._variance)
        assign(likelihood.noise_covar, "noise", self._variance)
        return True


def _variance(y: Tensor) -> Tensor:
    return y.var().clamp_min(torch.finfo(y.dtype).tiny)
