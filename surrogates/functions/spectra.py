"""Random waves of a GPyTorch kernel: what its random features are made of.

A kernel is written as an average of waves with frequencies ω (d), weights w ≥ 0 and amplitudes
a(x), products of affine functions,

    k(x, z)  =  E Σ_j w_j a_j(x) a_j(z) cos(ω_jᵀ (x − z)),    j = 1 … h.

Sums put waves side by side. A product adds the frequencies of independent waves, cos α cos β = E
cos(α ± β), and multiplies the rest.

Deep kernels, k(x, z) = κ(φ(x), φ(z)), have the waves of κ at φ(x): what a kernel of no known class
hands to the only kernel in it. All waves are functions of u(x) = (x, φ_1(x), φ_2(x), …).

Weighted waves come from a law with more high frequencies than the kernel's own, see
:mod:`surrogates.functions.draws`. A product needs them from every factor: most often from one of
them at a time, each in its turn, and now and then from several at once.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn, Self

import numpy as np
import torch
from botorch.models.kernels.categorical import CategoricalKernel
from botorch.models.kernels.positive_index import PositiveIndexKernel
from gpytorch.kernels import (
    AdditiveKernel,
    AdditiveStructureKernel,
    ConstantKernel,
    CosineKernel,
    HammingIMQKernel,
    IndexKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PiecewisePolynomialKernel,
    PolynomialKernel,
    ProductKernel,
    ProductStructureKernel,
    RBFKernel,
    RFFKernel,
    RQKernel,
    ScaleKernel,
    SpectralDeltaKernel,
    SpectralMixtureKernel,
)
from linear_operator import to_dense
from scipy.special import gammaincinv
from torch import Tensor

from surrogates.functions.draws import (
    LARGEST_RATIO,
    NormalLaw,
    PiecewisePolynomialLaw,
    RadialLaw,
    ScaledNormalLaw,
    StudentLaw,
    category_frequencies,
    harmonics,
    standard_normal,
    strata,
    weighted_frequencies,
)
from surrogates.functions.modulations import (
    SEVERAL,
    Amplitudes,
    range_of_lengths,
    shuffled,
    tanimoto_waves,
    task_amplitudes,
    turns,
)
from surrogates.functions.tasks import TaskKernel
from surrogates.operators.forms import (
    FORMS,
    PROFILES,
    KernelForm,
    StationaryKernel,
    composed,
    form_of,
    kind_of,
    leaves,
    visible,
)
from surrogates.operators.main_effects import MainEffectsKernel
from surrogates.operators.tanimoto import TanimotoKernel

Normal = Callable[[tuple[int, int], Tensor, torch.Generator], Tensor]
# Maps a part that transforms its points to the kernel inside it and to that kernel's columns
Found = Mapping[Kernel, tuple[Kernel, Tensor]]


class NoFeaturesError(ValueError):
    """A kernel is of no kind whose spectrum is known."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """The map u of points (m, d) to those that waves are functions of.

    Attributes:
        dim: d.
        steps: kernels, and which columns of the points and of what is made of them they look at.
    """

    dim: int
    steps: tuple[tuple[Kernel, Tensor], ...]

    @classmethod
    def of(cls, kernel: Kernel, X: Tensor) -> tuple[Self, Found]:
        """Return u for a kernel, and of each part that is one of what is made of its points, κ and
        its columns.

        Args:
            X: (..., m, d) points, at a few of which k and κ are compared.

        Raises:
            NoFeaturesError: naming a part whose spectrum is not known, and that is no such kernel.
            ValueError: for a kernel of one input that looks at several.
        """
        steps: list[tuple[Kernel, Tensor]] = []
        found: dict[Kernel, tuple[Kernel, Tensor]] = {}
        dim = X.shape[-1]
        X = X.reshape(-1, dim)[:4]
        queue = [(kernel, torch.arange(dim, device="cpu"))]
        for whole, columns in queue:
            for part, own in leaves(whole, columns):
                if form_of(part).waves is None:
                    made = _made(part, X[:, own])
                    columns_made = X.shape[1] + torch.arange(made.shape[1], device="cpu")
                    found[part] = _inner(part)[1], columns_made
                    steps.append((deepcopy(part).requires_grad_(False), own))
                    queue.append(found[part])
                    X = torch.cat([X, made], dim=1)
        return cls(dim, tuple(steps)), found

    def __call__(self, X: Tensor) -> Tensor:
        for kernel, columns in self.steps:
            X = torch.cat([X, _handed(kernel, X[:, columns])], dim=1)
        return X

    def to(self, like: Tensor) -> Self:
        """Return the same in the dtype of ``like``, on its device."""
        steps = tuple((deepcopy(kernel).to(like), columns) for kernel, columns in self.steps)
        return replace(self, steps=steps)


@torch.no_grad()
def _made(kernel: Kernel, X: Tensor) -> Tensor:
    """Return φ(X), or raise an error if ``kernel`` is not κ of that."""
    try:  # a user's kernel may do anything
        made = torch.cat([_handed(kernel, x) for x in X.split(1)])
        values = _inner(kernel)[1](made, made[:-1]).to_dense()
        torch.testing.assert_close(to_dense(kernel.forward(X, X[:-1])), values)
    except Exception as error:
        known = [kind.__name__ for kind, form in FORMS.items() if form.waves is not None]
        raise NoFeaturesError(
            f"`kernel` must be {', '.join(known)}, or made of them by ScaleKernel, sums and"
            " products, or hand what it makes of points to such a kernel, to have random features,"
            f" got {type(kernel).__name__}. Tell of its frequencies by `register_kernel`. Without"
            " them there are no paths, nor posteriors by an iterative solver, which are those of"
            " paths; use solver=Cholesky(), with which they are exact."
        ) from error
    return made


def _inner(kernel: Kernel) -> tuple[str, Kernel]:
    (found,) = (entry for entry in kernel.named_children() if isinstance(entry[1], Kernel))
    return found


def _handed(kernel: Kernel, X: Tensor) -> Tensor:
    """Return the points that ``kernel``, evaluated at X, hands to the only kernel in it."""
    name, inner = _inner(kernel)
    receiver = copy(inner)
    receiver.__class__ = type("Receiver", (type(inner),), {"__call__": _hand, "forward": _hand})
    evaluated = copy(kernel)  # which shares the dictionary
    evaluated.__dict__ = {**vars(kernel), "_modules": {**kernel._modules, name: receiver}}
    try:
        evaluated.forward(X, X[:1])
    except _Handed as handed:
        return handed.args[0]
    raise ValueError(f"A {type(kernel).__name__} does not call its {type(inner).__name__}.")


class _Handed(Exception):  # noqa: N818  # no error: it ends an evaluation
    """What a kernel was called with."""


def _hand(kernel: Kernel, x1: Tensor, *others: Any, **params: Any) -> NoReturn:
    raise _Handed(x1)


@dataclass(frozen=True, eq=False)
class Waves:
    """h random waves."""

    frequencies: Tensor  # Ω (d, h), lengthscales included
    weights: Tensor  # (h,)
    # ρ (h,), the density of the law of high frequencies over the kernel's own; 1 where both are the
    # same. ``reweighted`` puts them into the weights
    ratios: Tensor
    # Factors (d + 1, h) of the amplitudes, the intercepts in the last row; none for amplitudes of 1
    amplitudes: tuple[Tensor, ...] = ()
    modulations: tuple[Amplitudes, ...] = ()  # further factors, of fingerprints and of tasks

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
    """Draws waves of kernels."""

    dim: int  # the number of columns, d of inputs and those that kernels make of them
    like: Tensor  # whose dtype and device the waves take
    normal: Normal  # draws the (d, h) normal directions of isotropic kernels
    generator: torch.Generator  # source of all randomness
    weighted: bool = False  # whether half of the waves come from a law of higher frequencies
    # Whether the waves are those of a factor. Elsewhere, linear summands get no more waves than
    # make them exact. In a product every wave meets but one other: there they would leave most of
    # the other factor out
    in_product: bool = False
    # (n, d) data whose lengths the waves of fingerprints serve; those of binary vectors if ``None``
    points: Tensor | None = None
    # The kernels that parts hand on to, and the columns that they are of
    inner: Found = field(default_factory=dict)

    def draw(self, kernel: Kernel | StationaryKernel, count: int) -> Waves:
        """Return ``count`` waves of ``kernel``, as many as it has summands at least."""
        num_inputs = self.dim - sum(len(made) for _, made in self.inner.values())
        columns = torch.arange(num_inputs, device=self.like.device)
        tails = (torch.arange(count, device="cpu") % 2 == 1) & self.weighted
        if isinstance(kernel, Kernel):
            return self._finished(self._called(kernel, columns, tails))
        own = columns if kernel.active_dims is None else columns[kernel.active_dims]
        waves = self._isotropic(PROFILES[kernel.profile].nu, kernel.lengthscale, own, tails)
        weights = kernel.outputscale.to(self.like) * waves.weights
        return self._finished(replace(waves, weights=weights))

    def _finished(self, waves: Waves) -> Waves:
        return waves.reweighted() if self.weighted and not self.in_product else waves

    def _called(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        """Return waves of ``kernel`` in the input ``columns``; it picks its active ones."""
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
            source = replace(self, in_product=True)
            factors = [
                (partial(source._called, part, columns), _has_tails(part))
                for part in kernel.kernels
            ]
            return source._combined(factors, tails)
        if kernel in self.inner:
            part, made = self.inner[kernel]
            return self._called(part, made.to(columns.device), tails)
        return form_of(kernel).waves(self, kernel, columns, tails)  # type: ignore[misc]

    def _combined(
        self, parts: Sequence[tuple[Callable[[Tensor], Waves], bool]], tails: Tensor
    ) -> Waves:
        """Return waves of a product, which are high in one of the factors that can be, or in
        several. Of each of the ``parts`` there is what draws its waves, some of them high, and
        whether they can be.
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

    def _matern(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        nu = getattr(kernel, "nu", math.inf)  # of RBF
        return self._isotropic(nu, kernel.lengthscale, columns, tails)

    def _isotropic(self, nu: float, lengthscale: Tensor, columns: Tensor, tails: Tensor) -> Waves:
        """Return waves of a Matérn kernel or, with ν = ∞, of an RBF kernel.

        Those that are not weighted have ``ω = g sqrt(2ν / c)`` with one ``c ~ χ²(2ν)`` a frequency:
        one a coordinate would be a product of one-dimensional kernels.
        """
        m = len(columns)
        if self.weighted:
            law = NormalLaw(m) if nu == math.inf else StudentLaw(m, int(2 * nu))
            return self._weighted(law, lengthscale, columns, tails)
        directions = self.normal((m, len(tails)), self.like, self.generator)
        if nu < math.inf:
            shape = (int(2 * nu), len(tails))
            chi_square = standard_normal(shape, self.like, self.generator).square().sum(0)
            directions = directions * (2.0 * nu / chi_square).sqrt()
        return self._stationary(directions, lengthscale, columns)

    def _rational_quadratic(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        """A mixture of RBF kernels: (1 + r²/2α)^-α = E exp(−τ r²/2), τ ~ Gamma(α, rate α)."""
        law = ScaledNormalLaw(len(columns), kernel.alpha.item())
        return self._weighted(law, kernel.lengthscale, columns, tails)

    def _piecewise_polynomial(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        """Made of what GPyTorch evaluates: (1 − r)^e times a polynomial of degree q."""
        power = len(columns) // 2 + 2 * kernel.q + 1
        r = np.linspace(0.0, 0.5, kernel.q + 1)
        unit = deepcopy(kernel).double().cpu()
        points = torch.zeros(len(r), len(columns), dtype=torch.float64, device="cpu")
        points[:, 0] = unit.lengthscale.detach()[0, 0] * torch.from_numpy(r)
        values = unit.forward(points, points[:1]).detach()[:, 0].numpy() / (1.0 - r) ** power
        coefficients = np.linalg.solve(np.vander(r, increasing=True), values)
        law = PiecewisePolynomialLaw(len(columns), power, tuple(coefficients.tolist()))
        return self._weighted(law, kernel.lengthscale, columns, tails)

    def _weighted(
        self, law: RadialLaw, lengthscale: Tensor, columns: Tensor, tails: Tensor
    ) -> Waves:
        directions, ratios = weighted_frequencies(law, tails, self.like, self.generator)
        return replace(self._stationary(directions, lengthscale, columns), ratios=ratios)

    def _periodic(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        """Fourier series: exp(−2 sin²(πr/p)/ℓ) = E cos(2πjr/p), with random j for every column."""
        rates = (1.0 / kernel.lengthscale.detach()).reshape(-1).expand(len(columns)).tolist()
        periods = kernel.period_length.detach().reshape(-1).expand(len(columns)).tolist()
        parts = [
            (partial(self._harmonics, rate, period, column), True)
            for rate, period, column in zip(rates, periods, columns.unsqueeze(1), strict=True)
        ]
        return parts[0][0](tails) if len(parts) == 1 else self._combined(parts, tails)

    def _by_name(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        return self._called(composed(kernel, len(columns)), columns, tails)

    def _harmonics(self, rate: float, period: float, column: Tensor, tails: Tensor) -> Waves:
        orders, ratios = harmonics(rate, tails, self.generator)
        frequencies = (2.0 * math.pi / period) * orders.to(self.like).unsqueeze(0)
        waves = self._waves(frequencies, column)
        return replace(waves, ratios=ratios.to(self.like)) if self.weighted else waves

    def _cosine(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        frequency = math.pi / kernel.period_length.detach().to(self.like)
        return self._waves(frequency.expand(1, len(tails)), columns)

    def _categorical(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        active = category_frequencies(kernel, len(columns), len(tails), self.generator)
        return self._waves(active.to(self.like), columns)

    def _tanimoto(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
        lengths = None if self.points is None else range_of_lengths(self.points[:, columns])
        active, modulation = tanimoto_waves(columns, len(tails), lengths, self.like, self.generator)
        return replace(self._waves(active, columns), modulations=(modulation,))

    def _index(self, kernel: Kernel, columns: Tensor, tails: Tensor) -> Waves:
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

    def _stationary(self, directions: Tensor, lengthscale: Tensor, columns: Tensor) -> Waves:
        return self._waves(directions / lengthscale.detach().reshape(-1, 1).to(self.like), columns)

    def _waves(self, active: Tensor, columns: Tensor) -> Waves:
        """Return waves of equal weights with sum 1, of frequency 0 in inactive columns."""
        count = active.shape[1]
        frequencies = self.like.new_zeros(self.dim, count)
        frequencies[columns] = active
        weights = self.like.new_full((count,), 1.0 / count)
        return Waves(frequencies, weights, torch.ones_like(weights))

    def _shares(
        self, kernel: AdditiveKernel, columns: Tensor, count: int
    ) -> list[tuple[Kernel, int]]:
        """Return each summand and its number of waves, equal but for those that few make exact."""
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
    return any(isinstance(part, Kernel) and form_of(part).has_tails for part in kernel.modules())


def _num_exact(kernel: Kernel, columns: Tensor) -> int | None:
    """Return how many waves are exact, of a kernel that has so few; ``None`` of another."""
    (part, own), *others = leaves(kernel, columns)
    return None if others else {LinearKernel: len(own), ConstantKernel: 1}.get(kind_of(part))


Spectrum = Callable[[Any, int, int, torch.Generator], tuple[Tensor, Tensor | float]]


def register_kernel(
    kind: type[Kernel], *, spectrum: Spectrum | None = None, settings: Sequence[str] | None = None
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
    kernel: RFFKernel | SpectralDeltaKernel, dim: int, count: int, generator: torch.Generator
) -> tuple[Tensor, float]:
    """The kernel is an average of waves itself."""
    if isinstance(kernel, SpectralDeltaKernel):
        omega = 2.0 * math.pi * kernel.Z.mT / kernel.lengthscale.mT
    else:
        kernel.forward(kernel.lengthscale.new_zeros(1, dim), kernel.lengthscale.new_zeros(1, dim))
        omega = kernel.randn_weights / kernel.lengthscale.mT
    order = torch.randperm(omega.shape[1], generator=generator, device=generator.device)
    return omega[:, order.repeat(-(-count // len(order)))[:count].to(omega.device)], 1.0


def _hamming(
    kernel: HammingIMQKernel, dim: int, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """With m letters that differ, (α + m)^-β ∝ E exp(−τ m) for τ ~ Gamma(β, rate α): a product
    over the places of the sequence. There [a = b] = E cos(θ_a − θ_b), with a phase θ for every
    letter of the alphabet, and exp(−τ) + (1 − exp(−τ)) [a = b] leaves the place out now and then.
    """
    letters = kernel.vocab_size
    quantiles = gammaincinv(kernel.beta.item(), strata(count, generator))
    rates = torch.from_numpy(quantiles) / kernel.alpha.item()
    shape = (dim // letters + dim, count)
    draws = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    there, phases = draws.cpu().split([dim // letters, dim])
    counted = (there > torch.exp(-rates)).repeat_interleave(letters, dim=0)
    return 2.0 * math.pi * phases * counted, (1.0 + 1.0 / kernel.alpha) ** kernel.beta


FORMS |= {
    RBFKernel: KernelForm(("ard_num_dims",), WaveSource._matern, has_tails=True),
    MaternKernel: KernelForm(("nu", "ard_num_dims"), WaveSource._matern, has_tails=True),
    RQKernel: KernelForm(("ard_num_dims",), WaveSource._rational_quadratic, has_tails=True),
    CosineKernel: KernelForm((), WaveSource._cosine, of_one_input=True),
    PeriodicKernel: KernelForm(("ard_num_dims",), WaveSource._periodic, has_tails=True),
    LinearKernel: KernelForm(("ard_num_dims",), WaveSource._linear),
    PiecewisePolynomialKernel: KernelForm(
        ("q", "ard_num_dims"), WaveSource._piecewise_polynomial, has_tails=True
    ),
    PolynomialKernel: KernelForm(("power",), WaveSource._polynomial),
    CategoricalKernel: KernelForm(("ard_num_dims",), WaveSource._categorical),
    TanimotoKernel: KernelForm((), WaveSource._tanimoto),
    AdditiveStructureKernel: KernelForm(None, WaveSource._by_name),
    ProductStructureKernel: KernelForm(None, WaveSource._by_name),
    IndexKernel: KernelForm(None, WaveSource._index, of_one_input=True),
    PositiveIndexKernel: KernelForm(None, WaveSource._index, of_one_input=True),
    MainEffectsKernel: KernelForm(("ard_num_dims",), WaveSource._by_name),
    TaskKernel: KernelForm(TaskKernel.SETTINGS, WaveSource._index, of_one_input=True),
}
register_kernel(ConstantKernel, spectrum=_constant, settings=())
register_kernel(HammingIMQKernel, spectrum=_hamming, settings=("vocab_size",))
register_kernel(RFFKernel, spectrum=_fourier)
register_kernel(SpectralDeltaKernel, spectrum=_fourier)
register_kernel(
    SpectralMixtureKernel, spectrum=_spectral_mixture, settings=("num_mixtures", "ard_num_dims")
)
