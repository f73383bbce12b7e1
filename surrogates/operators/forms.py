"""The registry of kernels holds what GPyTorch does not tell: how a stored model names their
classes, where their random features come from, and the closed form of RBF and Matérn-1/2, 3/2, 5/2.
A sum or product has what all of its parts have.

A closed form is ``k(x, z) = outputscale · κ(d²)`` with ``d² = ‖(x − z) / lengthscale‖²`` (isotropic
or ARD). ``κ`` and its slope ``dκ/d(d²)`` are all that values and gradients need;
:func:`covariance_of` has those in the hyperparameters, and :func:`gaussian_nll` the likelihood that
they are learned by.

On a CPU compiled C code finds values and sums from the points, see
:mod:`surrogates.operators.native`, and PyTorch those of given distances. On a device PyTorch
compiles them once they have enough work before them: that takes about ten seconds where nothing is
cached, and saves two thirds of an entry's time. A function runs eagerly until it has processed so
many entries that compiling would have paid for itself, and compiled from then on.
All ways compute the same formula and agree to rounding. The environment variable
``SCALABLE_BO_COMPILE`` overrides the rule: ``always``, ``never`` or ``auto`` (the default).
"""

import logging
import math
import operator
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from types import FunctionType
from typing import Any

import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import (
    AdditiveKernel,
    AdditiveStructureKernel,
    Kernel,
    MaternKernel,
    ProductKernel,
    ProductStructureKernel,
    RBFKernel,
    ScaleKernel,
)
from torch import Tensor
from torch.nn import Parameter

from surrogates.operators import native
from surrogates.operators.main_effects import MainEffectsKernel, matern52

logger = logging.getLogger(__name__)

# Below this the call's own overhead dominates, and sizes 0 and 1 would be specialised
SMALLEST_COMPILED_TILE = 4096
# What a subclass may define without becoming another function
HARMLESS = {"__init__", "__doc__", "__module__", "__annotations__", "__repr__", "__str__"}
HARMLESS |= {"__abstractmethods__", "_abc_impl", "__firstlineno__", "__static_attributes__"}


@dataclass(frozen=True)
class KernelForm:
    """One class of kernels in the registry."""

    # Attributes that are arguments of its constructor and no tensors, beside the batch shape and
    # the active dimensions; ``None`` if models with it are not stored
    settings: tuple[str, ...] | None = None
    waves: Callable[..., Any] | None = None  # draws its random waves, if there is a way
    has_tails: bool = False  # whether those may come from a law of higher frequencies
    of_one_input: bool = False  # whether it is no kernel of several


# By class, none of which is a subclass of another; :mod:`surrogates.functions.spectra` adds those
# with random features, and :func:`register_kernel` those of users
FORMS: dict[type[Kernel], KernelForm] = {
    kind: KernelForm(()) for kind in (ScaleKernel, AdditiveKernel, ProductKernel)
}


def kind_of(kernel: Kernel) -> type[Kernel]:
    """Return the class that ``kernel`` is the same function as: its own, or the known one that it
    is derived from without overriding anything but the constructor.
    """
    own = type(kernel)
    if own in FORMS:
        return own
    for known in FORMS:
        if isinstance(kernel, known):
            added = set(own.__mro__) - set(known.__mro__)
            defined = set().union(*map(vars, added)) - HARMLESS
            return known if defined.isdisjoint(dir(known)) else own
    return own


def form_of(kernel: Kernel) -> KernelForm:
    """Return what is known of the class of a kernel."""
    return FORMS.get(kind_of(kernel), KernelForm())


def visible(kernel: Kernel, columns: Tensor) -> Tensor:
    """Return those of the input ``columns`` that ``kernel`` picks when it is called."""
    return columns if kernel.active_dims is None else columns[kernel.active_dims.to(columns.device)]


def leaves(kernel: Kernel, columns: Tensor) -> list[tuple[Kernel, Tensor]]:
    """Return the kernels that ``kernel`` is a sum, product or multiple of, and which of the input
    ``columns`` each looks at.

    Raises:
        ValueError: for a kernel of one input that looks at several.
    """
    found = []
    stack = [(kernel, visible(kernel, columns))]
    while stack:
        kernel, columns = stack.pop()
        kind = kind_of(kernel)
        if kind is ScaleKernel:  # selects for the kernel below it, which it does not call
            stack.append((kernel.base_kernel, columns))
        elif kind in (AdditiveKernel, ProductKernel):
            stack += [(part, visible(part, columns)) for part in reversed(kernel.kernels)]
        else:
            if form_of(kernel).of_one_input and len(columns) != 1:
                raise ValueError(
                    f"`kernel` must look at one input where it is {kind.__name__}, got"
                    f" {len(columns)}. Give `active_dims`."
                )
            found.append((kernel, columns))
    return found


def composed(kernel: Kernel, dim: int) -> Kernel:
    """Return the sum or product of others, with parameters of their own, that a kernel of ``dim``
    inputs is under another name; itself if it is none.
    """
    kind = kind_of(kernel)
    if kind is MainEffectsKernel:
        return kernel.summands()
    if kind not in (AdditiveStructureKernel, ProductStructureKernel):
        return kernel
    parts = [deepcopy(kernel.base_kernel).requires_grad_(False) for _ in range(dim)]
    for i, part in enumerate(parts):
        part.active_dims = torch.tensor([i], device=kernel.device)
        for own in part.modules():
            if getattr(own, "has_lengthscale", False) and own.lengthscale.shape[-1] > 1:
                lengthscale = own.lengthscale[..., [i]]
                own.raw_lengthscale = Parameter(lengthscale, requires_grad=False)
                own.register_constraint("raw_lengthscale", Positive())  # in place of bounds for all
                own.lengthscale = lengthscale
    return (AdditiveKernel if kind is AdditiveStructureKernel else ProductKernel)(*parts)


def unscaled(kernel: Kernel) -> tuple[Tensor, Kernel]:
    """Return the product of the factors of ``ScaleKernel`` around a kernel, and that kernel; its
    active dimensions, which the first one takes over, are not applied again.
    """
    factor = torch.ones((), device="cpu")
    while kind_of(kernel) is ScaleKernel and not kernel.outputscale.ndim:
        factor = factor.to(kernel.outputscale) * kernel.outputscale.detach()
        kernel = kernel.base_kernel
    return factor, kernel


@dataclass(frozen=True)
class StationaryKernel:
    """A GPyTorch kernel reduced to its closed form."""

    profile: str  # of :data:`surrogates.operators.forms.PROFILES`
    lengthscale: Tensor  # (d,) or (1,), in the units of the inputs
    outputscale: Tensor  # scalar tensor, the prior variance
    active_dims: Tensor | None  # the input columns the kernel looks at; ``None`` for all

    @classmethod
    def of(cls, kernel: Kernel) -> "StationaryKernel | None":
        """Return the closed form of ``kernel``; ``None`` where its own evaluation is used."""
        active_dims = kernel.active_dims
        outputscale, kernel = unscaled(kernel)
        if kernel.batch_shape:
            return None
        kind = kind_of(kernel)
        if kind is RBFKernel:
            profile = "rbf"
        elif kind is MaternKernel:
            profile = f"matern{int(2 * kernel.nu)}2"
        else:
            return None
        lengthscale = kernel.lengthscale.detach().reshape(-1)
        return cls(profile, lengthscale, outputscale.to(lengthscale), active_dims)

    def scaled(self, X: Tensor) -> Tensor:
        """Return the active columns of ``X`` in units of the lengthscale."""
        active = X if self.active_dims is None else X[..., self.active_dims]
        return active / self.lengthscale.to(X)


class Fused:
    """A function of tensors that a device evaluates compiled where that is faster.

    Args:
        function: its first argument is the tile whose entries are counted.
        entries_before_compiling: evaluated without a compiler, which takes some seconds.
    """

    def __init__(self, function: Callable[..., Any], entries_before_compiling: int = 10**11):
        self.function = function
        self.entries_before_compiling = entries_before_compiling
        self._compiled: Callable[..., Any] | None = None
        self._unavailable = False
        self._entries = 0

    def __call__(self, tile: Tensor, *others: Tensor) -> Any:
        is_small = tile.device.type == "cpu" or tile.numel() < SMALLEST_COMPILED_TILE
        if is_small or not self._use_compiled(tile):
            return self.function(tile, *others)
        if self._compiled is None:
            self._compiled = torch.compile(_with_own_code(self.function), dynamic=True)
            logger.info("compiling the kernel's elementwise part; this takes some seconds, once")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's own, about its internals
                return self._attempt(tile, *others)
        return self._attempt(tile, *others)

    def _use_compiled(self, tile: Tensor) -> bool:
        mode = native.mode()
        if mode == "never" or self._unavailable:
            return False
        if mode == "auto" and self._compiled is None:
            self._entries += tile.numel()
            return self._entries >= self.entries_before_compiling
        return True

    def _attempt(self, *arguments: Tensor) -> Any:
        try:
            return self._compiled(*arguments)  # type: ignore[misc]
        except torch.cuda.OutOfMemoryError:
            raise  # for smaller tiles
        # Any failure of the tool chain, at a later compilation, too: the eager formula remains
        except Exception as error:
            self._unavailable = True
            self._compiled = None
            reason = str(error).partition("\n")[0]
            logger.warning(
                "compiling failed (%s: %s); going on uncompiled", type(error).__name__, reason
            )
            return self.function(*arguments)


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with a code object of its own: the compiler limits how often one is
    recompiled, and beyond that further kernels would silently stay uncompiled.
    """
    if not isinstance(function, FunctionType):
        return function
    code = function.__code__.replace()
    return FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


# κ = level · decay and dκ/d(d²) = slope · decay, as (decay, level, slope)
Terms = tuple[Tensor, Tensor | float, Tensor | float]


def _rbf(d2: Tensor) -> Terms:
    return d2.clamp_min(0.0).mul_(-0.5).exp_(), 1.0, -0.5


def _matern12(d2: Tensor) -> Terms:
    tiny = torch.finfo(d2.dtype).tiny
    r = d2.clamp_min(tiny).sqrt_()
    # At a data point the slope is that of no direction: 0, the mean over all of them
    return (-r).exp_(), 1.0, (-0.5 / r).masked_fill_(d2 <= tiny, 0.0)


def _matern32(d2: Tensor) -> Terms:
    # At 1 / eps the decay is 0: a d² that rounds to infinity would multiply it, and 0 · ∞ is NaN
    r = d2.clamp(0.0, 1.0 / torch.finfo(d2.dtype).eps).mul_(3.0).sqrt_()
    return (-r).exp_(), 1.0 + r, -1.5


def _matern52(d2: Tensor) -> Terms:
    r = d2.clamp(0.0, 1.0 / torch.finfo(d2.dtype).eps).mul_(5.0).sqrt_()
    linear = 1.0 + r
    return (-r).exp_(), linear.addcmul(r, r, value=1.0 / 3.0), linear.mul_(-5.0 / 6.0)


@dataclass(frozen=True)
class Profile:
    """The fused elementwise functions of one kernel family."""

    # ν of a Matérn kernel, infinite of RBF. Below 1, κ has an infinite slope at 0, and d² must be
    # free of cancellation
    nu: float
    value: Callable[[Tensor, Tensor], Tensor]  # ``(d2, outputscale) -> outputscale · κ(d2)``
    value_: Callable[[Tensor, Tensor], Tensor]  # the same in the place of d2 (N,)
    # ``(d2 (g, r, c), weights (g, 1 or r, c)) -> (Σ_c κ w (g, r), κ' w (g, r, c))``
    contract: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _profile(nu: float, formula: Callable[[Tensor], Terms]) -> Profile:
    def value(d2: Tensor, outputscale: Tensor) -> Tensor:
        decay, level, _ = formula(d2)
        return decay.mul_(level).mul_(outputscale)

    def contract(d2: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        decay, level, slope = formula(d2)
        weighted = decay.mul_(weights)
        return (level * weighted).sum(-1), weighted.mul_(slope)

    def overwrite(d2: Tensor, outputscale: Tensor) -> Tensor:
        return d2.copy_(value(d2, outputscale))

    return Profile(nu, Fused(value), Fused(overwrite), Fused(contract))


PROFILES = {
    "rbf": _profile(math.inf, _rbf),
    "matern12": _profile(0.5, _matern12),
    "matern32": _profile(1.5, _matern32),
    "matern52": _profile(2.5, _matern52),
}


def covariance_of(kernel: Kernel) -> Callable[[Kernel, Tensor], Tensor]:
    """Return what evaluates a kernel like this one, (kernel, X) to k(X, X) (b, m, m),
    differentiable in the hyperparameters: in closed form, once, where ``kernel`` has one, and sums
    of such.
    """
    if kind_of(kernel) is AdditiveKernel:
        return partial(_summed, [covariance_of(part) for part in kernel.kernels])
    if type(kernel) is ScaleKernel and not kernel.batch_shape and kernel.active_dims is None:
        effects = kernel.base_kernel
        if type(effects) is MainEffectsKernel and effects.active_dims is None:
            return _of_main_effects
    form = StationaryKernel.of(kernel)
    if form is None or PROFILES[form.profile].nu < 1.0:
        return _evaluated
    return partial(_stationary, form.profile, form.active_dims)


def _evaluated(kernel: Kernel, X: Tensor) -> Tensor:
    return kernel(X).to_dense()


def _summed(parts: list[Callable[[Kernel, Tensor], Tensor]], kernel: Kernel, X: Tensor) -> Tensor:
    X = X if kernel.active_dims is None else X[..., kernel.active_dims]
    return torch.stack(list(map(operator.call, parts, kernel.kernels, repeat(X)))).sum(0)


def _of_main_effects(kernel: Kernel, X: Tensor) -> Tensor:
    if X.requires_grad:  # the closed forms have no gradient in the points
        return _evaluated(kernel, X)
    lengthscale = kernel.base_kernel.lengthscale.reshape(-1)
    return _MainEffectsCovariance.apply(X, lengthscale, kernel.outputscale)


def _stationary(profile: str, active_dims: Tensor | None, kernel: Kernel, X: Tensor) -> Tensor:
    if X.requires_grad:
        return _evaluated(kernel, X)
    outputscale = X.new_ones(())
    while isinstance(kernel, ScaleKernel):
        outputscale = outputscale * kernel.outputscale
        kernel = kernel.base_kernel
    X = X if active_dims is None else X[..., active_dims]
    lengthscale = kernel.lengthscale.reshape(-1)
    return _StationaryCovariance.apply(X, lengthscale, outputscale, profile)


class _StationaryCovariance(torch.autograd.Function):
    """outputscale · κ(d²), d² = Σ_j (x_j − x'_j)² / ℓ_j²; with G the gradient with respect to K and
    V = G ∘ outputscale κ'(d²),

    ∂/∂ℓ_j = −(2 / ℓ_j) Σ_ik V_ik (z_ij − z_kj)², z = x / ℓ, whose sum is V's row and column sums
    times z², less 2 zᵀ V z.
    """

    @staticmethod
    def forward(
        ctx: Any, X: Tensor, lengthscale: Tensor, outputscale: Tensor, profile: str
    ) -> Tensor:
        # Centred: the points of a set may be close together and far from 0
        Z = (X - X.mean(-2, keepdim=True)) / lengthscale
        norms = Z.square().sum(-1)
        d2 = torch.baddbmm(norms.unsqueeze(-1) + norms.unsqueeze(-2), Z, Z.mT, alpha=-2.0)
        d2.diagonal(dim1=-2, dim2=-1).zero_()
        ctx.save_for_backward(Z, d2, lengthscale, outputscale)
        ctx.profile = profile
        return PROFILES[profile].value(d2, outputscale)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[None, Tensor | None, Tensor | None, None]:
        _refuse_second_derivatives()
        Z, d2, lengthscale, outputscale = ctx.saved_tensors
        sums, V = PROFILES[ctx.profile].contract(d2, G)
        of_squares = (V.sum(-1) + V.sum(-2)).unsqueeze(-1) * Z.square()
        moments = (of_squares - 2.0 * Z * (V @ Z)).flatten(0, -2).sum(0)
        # One lengthscale for all inputs takes the sum
        grad_lengthscale = -2.0 * outputscale * moments / lengthscale
        return None, grad_lengthscale.sum_to_size(lengthscale.shape), sums.sum(), None


class _MainEffectsCovariance(torch.autograd.Function):
    """outputscale · (1/d) Σ_j κ(r_j), r_j = √5 |x_j − x'_j| / ℓ_j, κ(r) = (1 + r + r²/3) exp(−r);
    with G the gradient with respect to K,

    ∂/∂ℓ_j = outputscale / (d ℓ_j) Σ_ik G_ik r² (1 + r) exp(−r) / 3, r = r_j of x_i and x_k.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, lengthscale: Tensor, outputscale: Tensor) -> Tensor:
        # One input after the other: their matrices stay in the cache
        mean = torch.zeros_like(X[..., :1] + X[..., :1].mT)
        slopes = []
        for z in (X * (math.sqrt(5.0) / lengthscale)).unbind(-1):
            r = (z.unsqueeze(-1) - z.unsqueeze(-2)).abs_()
            value, fall = matern52(r)
            slopes.append(fall.mul_(r).mul_(r))
            mean += value / X.shape[-1]
        ctx.save_for_backward(mean, lengthscale, outputscale, *slopes)
        return outputscale * mean

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[None, Tensor, Tensor]:
        _refuse_second_derivatives()
        mean, lengthscale, outputscale, *slopes = ctx.saved_tensors
        flat = G.flatten()
        moments = torch.stack([flat @ slope.flatten() for slope in slopes])
        grad_lengthscale = outputscale * moments / (len(slopes) * lengthscale)
        return None, grad_lengthscale, flat @ mean.flatten()


def gaussian_nll(K: Tensor, r: Tensor) -> Tensor:
    """Return −log N(r; 0, K) (b,) for K (b, m, m) and r (b, m), differentiable once; ∞ where a
    matrix is not finite or not positive definite to within its own trace.
    """
    return _GaussianNLL.apply(K, r)


def batched_cholesky(K: Tensor) -> Tensor:
    """Return the Cholesky factors of K (b, m, m), each shifted as little as rounding demands.

    Raises:
        FloatingPointError: if a matrix is not finite or not positive definite within its trace.
    """
    factor, failed = _shifted_cholesky(K)
    if bool(failed.any()):
        raise FloatingPointError(
            "A minibatch's kernel matrix is not finite or not positive definite. Check the kernel"
            " and its inputs."
        )
    return factor


def _shifted_cholesky(K: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of :func:`batched_cholesky`, and which matrices (b,) have none."""
    factor, info = torch.linalg.cholesky_ex(K)
    share = 10.0 * torch.finfo(K.dtype).eps
    while share <= 1.0 and bool((failed := info > 0).any()):
        mean = K[failed].diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        shift = torch.diag_embed((share * mean).expand(-1, K.shape[-1]))
        factor[failed], info[failed] = torch.linalg.cholesky_ex(K[failed] + shift)
        share *= 10.0
    return factor, info > 0


class _GaussianNLL(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, K: Tensor, r: Tensor) -> Tensor:
        factor, failed = _shifted_cholesky(K)
        if bool(failed.any()):
            factor[failed] = torch.eye(K.shape[-1], device=K.device).to(K)
        inverse = torch.cholesky_inverse(factor)
        alpha = torch.cholesky_solve(r.unsqueeze(-1), factor).squeeze(-1)
        ctx.save_for_backward(inverse, alpha)
        log_root_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        nll = 0.5 * (r * alpha).sum(-1) + log_root_det + 0.5 * r.shape[-1] * math.log(2.0 * math.pi)
        return nll.masked_fill(failed | nll.isnan(), math.inf)

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, Tensor]:
        _refuse_second_derivatives()
        inverse, alpha = ctx.saved_tensors
        grad_r = scale.unsqueeze(-1) * alpha
        half = 0.5 * scale[:, None, None] * inverse
        factors = grad_r.unsqueeze(-1), alpha.unsqueeze(-2)
        return torch.baddbmm(half, *factors, alpha=-0.5), grad_r


def _refuse_second_derivatives() -> None:
    if torch.is_grad_enabled():  # by `create_graph`
        raise NotImplementedError(
            "The likelihood of small data sets has first derivatives only. Leave out"
            " `create_graph`, or differentiate GPyTorch's ExactMarginalLogLikelihood."
        )
