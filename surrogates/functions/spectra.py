"""Random waves of a GPyTorch kernel: what its random features are made of.

A kernel is written as an average of waves with frequencies ω (d), weights w ≥ 0 and amplitudes
a(x), products of affine functions,

    k(x, z)  =  E Σ_j w_j a_j(x) a_j(z) cos(ω_jᵀ (x − z)),    j = 1 … h.

Sums put waves side by side. A product adds the frequencies of independent waves, cos α cos β = E
cos(α ± β), and multiplies the rest.

Weighted waves come from a law with more high frequencies than the kernel's own, see
:mod:`surrogates.functions.draws`. A product needs them from every factor: most often from one of
them at a time, each in its turn, and now and then from several at once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from botorch.models.kernels.categorical import CategoricalKernel
from botorch.models.kernels.positive_index import PositiveIndexKernel
from gpytorch.kernels import (
    AdditiveKernel,
    ConstantKernel,
    IndexKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    ProductKernel,
    RBFKernel,
    RFFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from linear_operator import to_dense
from scipy.special import gammaincinv
from torch import Tensor

from surrogates.functions.draws import (
    LARGEST_RATIO,
    NormalLaw,
    RadialLaw,
    ScaledNormalLaw,
    StudentLaw,
    category_frequencies,
    harmonics,
    standard_normal,
    weighted_frequencies,
)
from surrogates.functions.mixing import SEVERAL, shuffled, turns
from surrogates.functions.modulations import (
    Amplitudes,
    range_of_lengths,
    tanimoto_waves,
    task_amplitudes,
)
from surrogates.functions.tasks import TaskKernel
from surrogates.operators.forms import (
    FORMS,
    KernelForm,
    StationaryKernel,
    form_of,
    kind_of,
    visible,
)
from surrogates.operators.main_effects import MainEffectsKernel
from surrogates.operators.tanimoto import TanimotoKernel

DEGREES_OF_FREEDOM = {"matern12": 1, "matern32": 3, "matern52": 5}

Normal = Callable[[tuple[int, int], Tensor, torch.Generator], Tensor]


class NoFeaturesError(ValueError):
    """A kernel is of no kind whose spectrum is known."""


def has_features(kernel: Kernel) -> bool:
    """Return whether ``kernel`` is made of kinds whose spectra are known."""
    kind = kind_of(kernel)
    if kind is ScaleKernel:
        return has_features(kernel.base_kernel)
    if kind in (AdditiveKernel, ProductKernel):
        return all(has_features(part) for part in kernel.kernels)
    return kind is MainEffectsKernel or form_of(kernel).waves is not None


def isotropic(
    shape: tuple[int, int],
    degrees: int | None,
    like: Tensor,
    normal: Normal,
    generator: torch.Generator,
) -> Tensor:
    """Return frequencies (d, h) of a kernel of lengthscale 1: RBF's normal ones, or Matérn's,
    multivariate t with ``degrees`` = 2ν.

    ``ω = g sqrt(2ν / c)`` has one ``c ~ χ²(2ν)`` a frequency: one a coordinate would be a product
    of one-dimensional kernels.
    """
    directions = normal(shape, like, generator)
    if degrees is None:
        return directions
    chi_square = standard_normal((degrees, shape[1]), like, generator).square().sum(0)
    return directions * (degrees / chi_square).sqrt()


@dataclass(frozen=True, eq=False)
class Waves:
    """h random waves.

    Attributes:
        frequencies: Ω (d, h), lengthscales included.
        weights: (h,).
        ratios: ρ (h,), the density of the law of high frequencies over the kernel's own; 1 where
            both are the same. ``reweighted`` puts them into the weights.
        amplitudes: factors (d + 1, h) of the amplitudes: slopes, and in the last row the
            intercepts; none for amplitudes of 1.
        modulations: further factors of the amplitudes, of fingerprints and of tasks.
    """

    frequencies: Tensor
    weights: Tensor
    ratios: Tensor
    amplitudes: tuple[Tensor, ...] = ()
    modulations: tuple[Amplitudes, ...] = ()

    def __len__(self) -> int:
        return self.frequencies.shape[1]

    def __add__(self, other: "Waves") -> "Waves":
        """Return the waves of the sum of two kernels."""
        longest = max(len(self.amplitudes), len(other.amplitudes))
        return Waves(
            torch.cat([self.frequencies, other.frequencies], dim=1),
            torch.cat([self.weights, other.weights]),
            torch.cat([self.ratios, other.ratios]),
            tuple(
                torch.cat(pair, dim=1)
                for pair in zip(self._padded(longest), other._padded(longest), strict=True)
            ),
            (
                *(part.between(0, len(other)) for part in self.modulations),
                *(part.between(len(self), 0) for part in other.modulations),
            ),
        )

    def __mul__(self, other: "Waves") -> "Waves":
        """Return the waves of the product of two kernels, of which these are as many and in
        independent orders; the ratios are the first's.
        """
        return Waves(
            self.frequencies + other.frequencies,
            len(self) * self.weights * other.weights,
            self.ratios,
            (*self.amplitudes, *other.amplitudes),
            (*self.modulations, *other.modulations),
        )

    def reordered(self, order: Tensor) -> "Waves":
        """Return the waves in another order (F,)."""
        return Waves(
            self.frequencies[:, order],
            self.weights[order],
            self.ratios[order],
            tuple(factor[:, order] for factor in self.amplitudes),
            tuple(part.reordered(order) for part in self.modulations),
        )

    def reweighted(self) -> "Waves":
        """Return these waves with the weights of the mixture that they were drawn from,
        whose sum is unchanged: the prior variance stays exact.
        """
        weights = self.weights / (0.5 + 0.5 * self.ratios)
        weights = weights * (self.weights.sum() / weights.sum())
        return replace(self, weights=weights, ratios=torch.ones_like(weights))

    def _padded(self, count: int) -> tuple[Tensor, ...]:
        ones = torch.cat(
            [torch.zeros_like(self.frequencies), torch.ones_like(self.frequencies[:1])]
        )
        return (*self.amplitudes, *[ones] * (count - len(self.amplitudes)))


@dataclass(frozen=True, eq=False)
class WaveSource:
    """Draws waves of kernels.

    Attributes:
        dim: d, the number of input columns.
        like: tensor whose dtype and device the waves take.
        normal: draws the (d, h) normal directions of isotropic kernels.
        generator: source of all randomness.
        weighted: whether half of the waves come from a law of higher frequencies, instead.
        in_product: whether the waves are those of a factor. Elsewhere, linear summands get no more
            waves than make them exact. In a product every wave meets but one other: there they
            would leave most of the other factor out.
        points: (n, d) data whose lengths the waves of fingerprints are to serve; those of binary
            vectors if ``None``.
    """

    dim: int
    like: Tensor
    normal: Normal
    generator: torch.Generator
    weighted: bool = False
    in_product: bool = False
    points: Tensor | None = None

    def draw(self, kernel: Kernel, count: int) -> Waves:
        """Return ``count`` waves of ``kernel``.

        Raises:
            ValueError: if the kernel, or one that it is made of, has no such waves, or has more
                summands than there are waves.
        """
        columns = torch.arange(self.dim, device=self.like.device)
        return self._finished(self._called(kernel, columns, self._tails(count)))

    def draw_stationary(self, kernel: StationaryKernel, count: int) -> Waves:
        """Return ``count`` waves of a kernel in closed form."""
        columns = kernel.active_dims
        if columns is None:
            columns = torch.arange(self.dim, device="cpu")
        waves = self._isotropic(
            DEGREES_OF_FREEDOM.get(kernel.profile),
            kernel.lengthscale,
            columns.to(self.like.device),
            self._tails(count),
        )
        waves = replace(waves, weights=kernel.outputscale.to(self.like) * waves.weights)
        return self._finished(waves)

    def _tails(self, count: int) -> Tensor:
        """Return which of ``count`` waves are to come from the law of high frequencies."""
        return (torch.arange(count, device="cpu") % 2 == 1) & self.weighted

    def _finished(self, waves: Waves) -> Waves:
        return waves.reweighted() if self.weighted and not self.in_product else waves

    def _called(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        """Return waves of ``kernel(x, z)`` for x, z of the input ``columns``:
        a kernel that is called picks its active dimensions.
        """
        return self._forward(kernel, visible(kernel, columns), tails)

    def _forward(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        """Return a wave for each of ``tails`` (h,), high where it is true."""
        kind = kind_of(kernel)
        if kernel.batch_shape:
            shape = tuple(kernel.batch_shape)
            raise ValueError(
                f"`kernel` must have no batch shape, to have random features, got {kind.__name__}"
                f" of {shape}."
            )
        if kind is ScaleKernel:  # has taken over the active dimensions of its base kernel
            waves = self._forward(kernel.base_kernel, columns, tails)
            return replace(waves, weights=kernel.outputscale.detach().to(self.like) * waves.weights)
        if kind is MainEffectsKernel:
            kernel = kernel.summands()
            kind = AdditiveKernel
        if kind is AdditiveKernel:
            shares = self._shares(kernel, columns, len(tails))
            own_tails = tails.split([size for _, size in shares])
            parts = [
                # Every summand keeps its own prior variance
                self._finished(self._called(part, columns, own))
                for (part, _), own in zip(shares, own_tails, strict=True)
            ]
            return sum(parts[1:], start=parts[0])
        if kind is ProductKernel:
            return replace(self, in_product=True)._product(kernel, columns, tails)
        draw = form_of(kernel).waves
        if draw is None:
            known = [kind.__name__ for kind, form in FORMS.items() if form.waves is not None]
            raise NoFeaturesError(
                f"`kernel` must be {', '.join(known)}, or made of them by ScaleKernel, sums and"
                f" products, to have random features, got {kind.__name__}. Tell of its frequencies"
                " by `register_kernel`."
            )
        found: Waves = draw(self, kernel, columns, tails)
        return found

    def _product(self, kernel: ProductKernel, columns: Tensor, tails: Tensor) -> Waves:
        parts = [
            (partial(self._called, part, columns), _has_tails(part)) for part in kernel.kernels
        ]
        return self._combined(parts, tails)

    def _combined(
        self, parts: Sequence[tuple[Callable[[Tensor], Waves], bool]], tails: Tensor
    ) -> Waves:
        """Return waves of a product, which are high in one of the factors that can be, or in
        several of them.

        Args:
            parts: draws the waves of each factor, of which those given are high; and whether they
                can be.
        """
        able = [i for i, (_, has_tails) in enumerate(parts) if has_tails]
        own_tails = [torch.zeros_like(tails) for _ in parts]
        for i, own in zip(
            able, turns(tails, len(able), self.weighted, self.generator), strict=True
        ):
            own_tails[i] = own
        first, *others = [draw(own) for (draw, _), own in zip(parts, own_tails, strict=True)]
        factors = [first]
        for waves, own in zip(others, own_tails[1:], strict=True):
            order = shuffled(own, self.weighted, self.generator)
            factors.append(waves.reordered(order.to(self.like.device)))
        product = math.prod(factors[1:], start=first)
        if able:
            own_ratios = torch.stack([factors[i].ratios for i in able])
            share = min(1.0, 2.0 / len(able))
            several = ((1.0 - share) + share * own_ratios).prod(0)
            ratios = (1.0 - SEVERAL) * own_ratios.mean(0) + SEVERAL * several
            product = replace(product, ratios=ratios.clamp_max(LARGEST_RATIO))
        return product

    def _rbf(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        return self._isotropic(None, kernel.lengthscale, columns, tails)

    def _matern(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        return self._isotropic(int(2 * kernel.nu), kernel.lengthscale, columns, tails)

    def _isotropic(
        self, degrees: int | None, lengthscale: Tensor, columns: Tensor, tails: Tensor
    ) -> Waves:
        """Return waves of an RBF kernel or, with ``degrees`` = 2ν, of a Matérn kernel."""
        m = len(columns)
        if self.weighted:
            law = NormalLaw(m) if degrees is None else StudentLaw(m, degrees)
            return self._weighted(law, lengthscale, columns, tails)
        directions = self._directions(columns, len(tails), degrees)
        return self._stationary(directions, lengthscale, columns)

    def _rational_quadratic(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        """A mixture of RBF kernels: (1 + r²/2α)^-α = E exp(−τ r²/2), τ ~ Gamma(α, rate α)."""
        alpha = kernel.alpha.item()
        if self.weighted:
            law = ScaledNormalLaw(len(columns), alpha)
            return self._weighted(law, kernel.lengthscale, columns, tails)
        directions = self._directions(columns, len(tails))
        uniform = torch.rand(
            len(tails), generator=self.generator, device=self.generator.device, dtype=torch.float64
        )
        precision = torch.from_numpy(gammaincinv(alpha, uniform.cpu().numpy()) / alpha)
        precision = precision.to(self.like)
        return self._stationary(directions * precision.sqrt(), kernel.lengthscale, columns)

    def _weighted(
        self, law: RadialLaw, lengthscale: Tensor, columns: Tensor, tails: Tensor
    ) -> Waves:
        directions, ratios = weighted_frequencies(law, tails, self.like, self.generator)
        waves = self._stationary(directions, lengthscale, columns)
        return replace(waves, ratios=ratios)

    def _periodic(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        """Fourier series: exp(−2 sin²(πr/p)/ℓ) = E cos(2πjr/p), with random j for every column."""
        rates = (1.0 / kernel.lengthscale.detach()).reshape(-1).expand(len(columns)).tolist()
        periods = kernel.period_length.detach().reshape(-1).expand(len(columns)).tolist()
        parts = [
            (partial(self._harmonics, rate, period, column), True)
            for rate, period, column in zip(rates, periods, columns.unsqueeze(1), strict=True)
        ]
        return parts[0][0](tails) if len(parts) == 1 else self._combined(parts, tails)

    def _harmonics(self, rate: float, period: float, column: Tensor, tails: Tensor) -> Waves:
        orders, ratios = harmonics(rate, tails, self.generator)
        frequencies = (2.0 * math.pi / period) * orders.to(self.like).unsqueeze(0)
        waves = self._waves(frequencies, column)
        return replace(waves, ratios=ratios.to(self.like)) if self.weighted else waves

    def _categorical(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        active = category_frequencies(kernel, len(columns), len(tails), self.generator)
        return self._waves(active.to(self.like), columns)

    def _tanimoto(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        lengths = None if self.points is None else range_of_lengths(self.points[:, columns])
        active, modulation = tanimoto_waves(columns, len(tails), lengths, self.like, self.generator)
        return replace(self._waves(active, columns), modulations=(modulation,))

    def _index(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        if len(columns) != 1:
            raise ValueError(
                f"An index kernel must look at one input, the task, got {len(columns)}. Give"
                " `active_dims`."
            )
        covariance = to_dense(kernel.covar_matrix).detach().to(self.like)
        amplitudes = task_amplitudes(columns, covariance, len(tails), self.generator)
        waves = self._waves(self.like.new_zeros(1, len(tails)), columns)
        return replace(waves, modulations=(amplitudes,))

    def _linear(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        variance = kernel.variance.detach().reshape(-1).to(self.like).expand(len(columns))
        return self._affine(variance, columns, tails)

    def _polynomial(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        """(xᵀz + c)^p is a product of p affine kernels."""
        rows = torch.cat([columns, columns.new_tensor([self.dim])])
        ones = self.like.new_ones(len(columns))
        variance = torch.cat([ones, kernel.offset.detach().reshape(1).to(self.like)])
        part = (partial(self._affine, variance, rows), False)
        return self._combined([part] * kernel.power, tails)

    def _affine(self, variance: Tensor, rows: Tensor, tails: Tensor) -> Waves:
        """Return waves of frequency 0, exact if there are as many as ``rows`` (m,), the columns of
        a kernel with their variances (m,), or the intercept: each has the amplitude of one.
        """
        count = len(tails)
        m = len(rows)
        order = torch.randperm(m, generator=self.generator, device=self.generator.device).to(
            self.like.device
        )
        number = torch.arange(count, device=self.like.device)
        # Sorted where the order of the waves matters
        axis = order[number * m // count if self.weighted and count >= m else number % m]
        slopes = self.like.new_zeros(self.dim + 1, count)
        slopes[rows[axis], number] = variance[axis].sqrt()
        repeats = torch.bincount(axis, minlength=m)[axis].to(self.like)
        weights = max(1.0, m / count) / repeats
        frequencies = self.like.new_zeros(self.dim, count)
        return Waves(frequencies, weights, torch.ones_like(weights), (slopes,))

    def _directions(self, columns: Tensor, count: int, degrees: int | None = None) -> Tensor:
        return isotropic((len(columns), count), degrees, self.like, self.normal, self.generator)

    def _stationary(self, directions: Tensor, lengthscale: Tensor, columns: Tensor) -> Waves:
        return self._waves(directions / lengthscale.detach().reshape(-1, 1).to(self.like), columns)

    def _waves(self, active: Tensor, columns: Tensor) -> Waves:
        """Return waves of equal weights that sum to 1, with frequency 0 in the columns that are not
        active.
        """
        count = active.shape[1]
        frequencies = self.like.new_zeros(self.dim, count)
        frequencies[columns] = active
        weights = self.like.new_full((count,), 1.0 / count)
        return Waves(frequencies, weights, torch.ones_like(weights))

    def _shares(
        self, kernel: AdditiveKernel, columns: Tensor, count: int
    ) -> list[tuple[Kernel, int]]:
        """Return the summands of ``kernel`` with the number of waves of each,
        equal but for those that few make exact.
        """
        enough = partial(_num_exact, columns=columns)
        parts = sorted(kernel.kernels, key=lambda part: enough(part) is None)
        left = count
        if count < len(parts):
            raise ValueError(
                f"`num_features` must be at least {2 * len(parts)} for a sum of {len(parts)}"
                f" kernels, got {2 * count}."
            )
        shares: list[tuple[Kernel, int]] = []
        for others in reversed(range(len(parts))):
            part = parts[len(shares)]
            share = left // (others + 1)
            if not self.in_product and others and (exact := enough(part)) is not None:
                share = min(share, exact)
            shares.append((part, share))
            left -= share
        return shares


def _has_tails(kernel: Kernel) -> bool:
    parts = [part for part in kernel.modules() if isinstance(part, Kernel)]
    return any(form_of(part).has_tails for part in parts)


def _num_exact(kernel: Kernel, columns: Tensor) -> int | None:
    """Return how many waves are exact, of a kernel that has so few; ``None`` of another."""
    columns = visible(kernel, columns)
    while kind_of(kernel) is ScaleKernel:
        kernel = kernel.base_kernel
    return {LinearKernel: len(columns), ConstantKernel: 1}.get(kind_of(kernel))


Spectrum = Callable[[Any, int, int, torch.Generator], tuple[Tensor, Tensor | float]]


def register_kernel(
    kind: type[Kernel],
    *,
    spectrum: Spectrum | None = None,
    settings: Sequence[str] | None = None,
) -> None:
    """Make a class of kernels of your own one that is known: with a ``spectrum`` it has random
    features, so that its models have paths at any n; with ``settings`` its models can be saved.
    Sums, products and multiples of it and of others then have both, too.

    Args:
        kind: the class, whose ``forward`` evaluates k.
        spectrum: of a stationary kernel k(x − z) = v E cos(ωᵀ (x − z)): maps a kernel, the number d
            of inputs that it looks at, a count h and a generator to frequencies ω (d, h), drawn at
            random, and v, the prior variance, a number or a tensor (); ``None`` without features.
        settings: names of attributes that are arguments of its constructor and no tensors, beside
            ``batch_shape`` and ``active_dims``; its parameters are kept anyway. A program that
            loads a model registers the class first.

    Raises:
        TypeError: if ``kind`` is no class of kernels.

    ```python
    def spectrum(kernel, dim, count, generator):
        signs = torch.randint(0, 2, (1, count), generator=generator) * 2 - 1
        return signs * math.pi / kernel.period_length, 1.0

    register_kernel(CosineKernel, spectrum=spectrum, settings=())
    ```
    """
    if not (isinstance(kind, type) and issubclass(kind, Kernel)):
        raise TypeError(f"`kind` must be a class of GPyTorch kernels, got {kind!r}.")

    def waves(source: WaveSource, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        assert spectrum is not None  # or this is not registered
        with torch.no_grad():
            omega, variance = spectrum(kernel, len(columns), len(tails), source.generator)
        if omega.shape != (shape := (len(columns), len(tails))):
            raise ValueError(f"`spectrum` must return frequencies {shape}, got {(*omega.shape,)}.")
        drawn = source._waves(omega.to(source.like), columns)
        return replace(drawn, weights=float(variance) * drawn.weights)

    own = None if settings is None else tuple(settings)
    FORMS[kind] = KernelForm(own, None if spectrum is None else waves)


def _spectral_mixture(
    kernel: SpectralMixtureKernel, dim: int, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Each input has a mixture of normal laws of its own, with the weights of all."""
    weights = kernel.mixture_weights
    uniform = torch.rand(
        dim, count, generator=generator, device=generator.device, dtype=torch.float64
    )
    shares = (weights / weights.sum()).cumsum(0).to(uniform)
    number = torch.searchsorted(shares, uniform).clamp_max(len(weights) - 1).to(weights.device)
    means, scales = (
        part.squeeze(-2).expand(-1, dim).mT.gather(1, number)
        for part in (kernel.mixture_means, kernel.mixture_scales)
    )
    signs, normal = standard_normal((2, dim * count), weights, generator).unflatten(1, (dim, count))
    return 2.0 * math.pi * (signs.sign() * means + scales * normal), weights.sum() ** dim


def _constant(
    kernel: ConstantKernel, dim: int, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    return torch.zeros(dim, count, dtype=torch.float64, device="cpu"), kernel.constant


def _fourier(
    kernel: RFFKernel, dim: int, count: int, generator: torch.Generator
) -> tuple[Tensor, float]:
    """The kernel is an average of waves itself."""
    kernel.forward(kernel.lengthscale.new_zeros(1, dim), kernel.lengthscale.new_zeros(1, dim))
    omega = kernel.randn_weights / kernel.lengthscale.mT
    order = torch.randperm(omega.shape[1], generator=generator, device=generator.device)
    return omega[:, order.repeat(-(-count // len(order)))[:count].to(omega.device)], 1.0


FORMS |= {
    RBFKernel: KernelForm(("ard_num_dims",), WaveSource._rbf, has_tails=True),
    MaternKernel: KernelForm(("nu", "ard_num_dims"), WaveSource._matern, has_tails=True),
    RQKernel: KernelForm(("ard_num_dims",), WaveSource._rational_quadratic, has_tails=True),
    PeriodicKernel: KernelForm(("ard_num_dims",), WaveSource._periodic, has_tails=True),
    LinearKernel: KernelForm(("ard_num_dims",), WaveSource._linear),
    PolynomialKernel: KernelForm(("power",), WaveSource._polynomial),
    CategoricalKernel: KernelForm(("ard_num_dims",), WaveSource._categorical),
    TanimotoKernel: KernelForm((), WaveSource._tanimoto),
    IndexKernel: KernelForm(None, WaveSource._index),
    PositiveIndexKernel: KernelForm(None, WaveSource._index),
    TaskKernel: KernelForm(None, WaveSource._index),
    MainEffectsKernel: KernelForm(("ard_num_dims",)),
}
register_kernel(ConstantKernel, spectrum=_constant, settings=())
register_kernel(RFFKernel, spectrum=_fourier)
register_kernel(
    SpectralMixtureKernel, spectrum=_spectral_mixture, settings=("num_mixtures", "ard_num_dims")
)
