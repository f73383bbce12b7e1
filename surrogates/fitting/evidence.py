"""What all data say of hyperparameters: predictive densities of random data given their neighbours.

Notation: q of the n data are left out, one at a time, and each is predicted from the k data nearest
to it, the noise included. This is a proper score, whatever k, and costs O(q k³).
"""

import math
from typing import NamedTuple

import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from surrogates import memory
from surrogates.fitting.batched import BatchedGP, log_normal
from surrogates.fitting.neighbours import Neighbours
from surrogates.operators.forms import batched_cholesky
from surrogates.rules.hyperparameters import training_data
from surrogates.rules.limits import INFERRED_NOISE, RESOLUTION, lengthscale_limits

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
    """The same random data, to compare hyperparameters of one model by.

    Args:
        num_points: q, at most n of which are used.
        num_neighbours: k, likewise.

    Attributes:
        white: (q,) log densities of the points if all of the data were noise about their mean.
    """

    def __init__(
        self,
        model: SingleTaskGP,
        generator: torch.Generator,
        num_points: int = 2000,
        num_neighbours: int = 100,
    ):
        self._num_neighbours = num_neighbours
        y = training_data(model)[1]
        self._y = y.double()
        order = torch.randperm(len(y), generator=generator, device=generator.device)
        self._points = order[:num_points].to(y.device)
        self._mean = self._y.mean()
        self._variance = _variance(self._y)
        self.white = log_normal(self._y[self._points], self._mean, self._variance)

    @torch.no_grad()
    def log_densities(self, model: SingleTaskGP) -> Tensor:
        """Return (q,) log densities of the points, each given its neighbours among the others.

        Raises:
            FloatingPointError: if a kernel matrix is not positive definite.
        """
        gp = BatchedGP(model)
        neighbours = Neighbours(gp.X, gp.covar_module)
        k = min(self._num_neighbours + 1, len(gp.X))
        densities = []
        for part in self._points.split(memory.part_size(k**2)):
            index = neighbours.of(gp.X[part], k)
            own = index == part.unsqueeze(1)
            own[~own.any(1), -1] = True  # hidden by duplicates: leave out any
            index = index[~own].reshape(len(part), k - 1)
            own = part.unsqueeze(1)
            mean, variance = gp.predict(gp.X[own], index)
            densities.append(log_normal(gp.y[own], mean, variance + gp.noise(own)).squeeze(1))
        return torch.cat(densities)

    @torch.no_grad()
    def misfit(
        self, model: SingleTaskGP, block_size: int = 1000, most_blocks: int = 8, fewest: int = 400
    ) -> Misfit:
        """Return what the errors of predictions say against ``model``, in blocks of neighbouring
        data: these tell it as much as all data do, other than the neighbours of single points,
        which follow a function closely whatever the lengthscales.

        With P = K⁻¹ of a block and α = P r, the data C, left out together, exceed their predictions
        by P_CC⁻¹ α_C, with the covariance P_CC⁻¹.

        Raises:
            FloatingPointError: if a kernel matrix is not positive definite.
        """
        gp = BatchedGP(model)
        size = min(block_size, len(gp.X))
        centres = self._points[: most_blocks if len(gp.X) > size else 1]
        blocks = Neighbours(gp.X, gp.covar_module).of(gp.X[centres], size)
        width = gp.X.amax(0) - gp.X.amin(0)
        nearer, missed, nearest = [], [], []
        is_new = torch.ones(len(gp.X), dtype=torch.bool, device=gp.X.device)
        for block in blocks.reshape(-1, 1, size):
            counts = is_new[block[0]]  # those that are in no block before
            is_new[block[0]] = False
            inverse = torch.cholesky_inverse(batched_cholesky(gp.with_noise(block)))[0]
            alpha = inverse @ gp.residuals(block)[0]
            Z = gp.X[block[0]] / torch.where(width > 0, width, 1.0)
            apart = torch.cdist(Z, Z, compute_mode="donot_use_mm_for_euclid_dist")
            distance, near = apart.topk(min(31, size), largest=False)
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
        variance.
        """
        likelihood = model.likelihood
        kernel = model.covar_module
        limits = lengthscale_limits(kernel, model.train_inputs[0])
        learned = [part.raw_lengthscale.requires_grad for part, _, _ in limits]
        noise_is_learned = (
            isinstance(likelihood, INFERRED_NOISE)
            and likelihood.raw_noise.requires_grad
            # Targets that hardly vary leave no noise that the model could have
            and self._variance > likelihood.noise_covar.raw_noise_constraint.lower_bound.max()
        )
        if not (noise_is_learned and learned and all(learned)):
            return False
        for part, _, upper in limits:
            part.lengthscale = upper.to(part.lengthscale)
        for part in kernel.modules():
            if isinstance(part, ScaleKernel) and part.raw_outputscale.requires_grad:
                part.outputscale = torch.full_like(
                    part.outputscale, faintest * self._variance.item()
                )
        likelihood.noise = self._variance.to(likelihood.noise)
        constant = getattr(model.mean_module, "raw_constant", None)
        if constant is not None and constant.requires_grad:
            model.mean_module.constant = self._mean.to(constant)
        return True


def _variance(y: Tensor) -> Tensor:
    return y.var().clamp_min(torch.finfo(y.dtype).tiny)
