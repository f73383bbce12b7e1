"""What the fits share: their checks, unconstrained coordinates of hyperparameters,
the prior term, and a prior that GPyTorch does not have.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from botorch.models import SingleTaskGP
from gpytorch import Module
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.priors import Prior
from torch import Tensor
from torch.distributions import Uniform, constraints
from torch.nn import Parameter

from surrogates import checks
from surrogates.rules.limits import lengthscale_limits

ModelT = TypeVar("ModelT", bound=SingleTaskGP)
# The steps done, and an estimate of the objective in nats (larger is better)
StepCallback = Callable[[int, float], None]

PARTS = ("mean_module", "covar_module", "likelihood")  # of a model whose likelihood is theirs


def check_model(model: SingleTaskGP) -> None:
    """Require a GPyTorch model."""
    if not isinstance(model, SingleTaskGP):
        raise TypeError(
            f"`model` must be a PathwiseGP or another SingleTaskGP, got {type(model).__name__}. Fit"
            " each of several models."
        )


def training_data(model: SingleTaskGP) -> tuple[Tensor, Tensor]:
    """Put ``model`` into evaluation mode; return its transformed X (n, d), standardised y (n,).

    Raises:
        TypeError, ValueError: if the model is no GPyTorch model of one output and one data set, or
            the data are not finite.
    """
    check_model(model)
    model.eval()  # the training inputs are then the transformed ones
    X = model.train_inputs[0]
    y = model.train_targets
    if X.ndim != 2 or y.ndim != 1:
        raise ValueError(
            f"`model` must have one output and one data set, got targets of shape {tuple(y.shape)}."
            " Fit one at a time."
        )
    checks.floating_tensor("model.train_inputs", X)
    checks.floating_tensor("model.train_targets", y)
    return X, y


def data_of_parts(model: SingleTaskGP) -> tuple[Tensor, Tensor]:
    """Return the :func:`training_data` of a model that learns its mean, kernel and likelihood only.

    Raises:
        TypeError, ValueError: as there, and if the model learns anything else, such as a warp of
            its inputs.
    """
    data = training_data(model)
    if others := learned_elsewhere(model):
        raise ValueError(
            "`model` must learn nothing but its mean, kernel and likelihood to be fitted by this"
            f" method, got the parameters {', '.join(others)}. Hold them fixed by"
            " `requires_grad_(False)`, or use `fit_exact` or `fit_sample`, which learn them."
        )
    return data


def learned_elsewhere(model: torch.nn.Module) -> list[str]:
    """Return the names of what ``model`` learns outside of its mean, kernel and likelihood."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and name.split(".")[0] not in PARTS
    ]


def rule_of(model: Any, method: str, kind: str) -> Any:
    """Return the rule of ``model``, whose own fit is ``method``.

    Raises:
        TypeError: if the model is not a ``kind``.
    """
    rule = getattr(model, "rule", None)
    own = None if rule is None else rule.own_fit(0)
    if own is None or own[0] != method:
        raise TypeError(f"`model` must be a {kind}, got {type(model).__name__}.")
    return rule


class Coordinates:
    """Unconstrained coordinates φ of the hyperparameters with ``requires_grad``, so that a step
    changes all by about the same share.

    A hyperparameter with a lower bound is ``lower + exp(φ)``, one between two bounds
    ``lower + (upper − lower) sigmoid(φ)``; others, such as the mean's constant, are φ. GPyTorch's
    own raw values would not do: BoTorch's defaults have bounds that these do not respect.

    Args:
        X: (n, d) inputs, if lengthscales are to stay in the range of :func:`lengthscale_limits`.
        in_proportion: whether the coordinates of such lengthscales of one part of the kernel move
            together, so that they are one number: how far they are from where they were.

    Attributes:
        value: (p,) the coordinates, a leaf for a torch optimizer.
        lower, upper: (p,) between which ``value`` stays; −∞ and ∞ without a range.
        floors: (p,) where ``value`` stands for a hyperparameter a thousandth above its lower bound,
            or −∞. Far below, a change of the value no longer changes the hyperparameter, and a
            search that came there would see no slope to leave it by.

    Raises:
        ValueError: if the module has no parameter with ``requires_grad``.
    """

    @torch.no_grad()
    def __init__(self, module: Module, X: Tensor | None = None, *, in_proportion: bool = False):
        limits = {} if X is None else _lengthscale_coordinates(module.covar_module, X)
        supports = _support_coordinates(module)
        self._parts: list[tuple[Parameter, Callable[[Tensor], Tensor], torch.Size]] = []
        columns = []
        for _, parameter, bounds in module.named_parameters_and_constraints():
            if not parameter.requires_grad:
                continue
            value, to_raw = _coordinate(parameter, bounds)
            free = torch.full_like(value, math.inf)
            lower, upper = limits.get(id(parameter), (-free, free))
            # The range that the data suggest may lie beyond the prior's support
            lower, upper = (
                end.clamp(*supports.get(id(parameter), (-free, free))) for end in (lower, upper)
            )
            if in_proportion and id(parameter) in limits:
                value = value.clamp(lower, upper)
                lower, upper = (lower - value).amax(), (upper - value).amin()
                to_raw = partial(_moved, to_raw, value)
                value = value.new_zeros(1)
            self._parts.append((parameter, to_raw, value.shape))
            column = value.new_empty(4, *value.shape)
            for row, number in zip(column, (value, lower, upper, _floor(bounds)), strict=True):
                row[...] = number
            columns.append(column.reshape(4, -1))
        if not columns:
            raise ValueError(
                "`model` must have a parameter with `requires_grad=True`, got none. There is"
                " nothing to fit."
            )
        self.value, self.lower, self.upper, self.floors = torch.cat(columns, 1).unbind()
        self.value.clamp_(self.lower, self.upper)
        self._written = self._trace()

    def pull_gradient(self) -> Tensor:
        """Turn the gradients that lie in the module's parameters into that of ``value`` as it was
        written, and return it; the former are cleared.
        """
        slopes = []
        for parameter, *_ in self._parts:
            slopes.append(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
            parameter.grad = None
        leaf, raw = self._written
        (gradient,) = torch.autograd.grad(raw, leaf, slopes, retain_graph=True)
        self.value.grad = gradient
        return gradient

    @torch.no_grad()
    def move_to(self, value: Tensor) -> None:
        """Write the hyperparameters that another ``value`` stands for."""
        self.value.copy_(value)
        self.write()

    @torch.no_grad()
    def write(self) -> None:
        """Put the hyperparameters that ``value`` stands for into the module; what has a range, and
        its values, are put back into it first.
        """
        self.value.clamp_(self.lower, self.upper)
        self._written = self._trace()
        for (parameter, *_), raw in zip(self._parts, self._written[1], strict=True):
            parameter.copy_(raw)

    @torch.enable_grad()
    def _trace(self) -> tuple[Tensor, list[Tensor]]:
        """Return a leaf that equals ``value``, and the raw parameters as functions of it."""
        leaf = self.value.detach().clone().requires_grad_()
        values = leaf.split([shape.numel() for *_, shape in self._parts])
        return leaf, [
            to_raw(value.view(shape))
            for (_, to_raw, shape), value in zip(self._parts, values, strict=True)
        ]


def batches(
    n: int, batch_size: int, generator: torch.Generator, device: torch.device
) -> Iterator[Tensor]:
    """Yield the indices of batches for ever, each epoch in a new order."""
    while True:
        order = torch.randperm(n, generator=generator, device=generator.device).to(device)
        yield from order[: n - n % batch_size].split(batch_size)


def log_prior(module: Module) -> Tensor:
    """Return Σ log p(hyperparameter) over the priors of ``module``, differentiable, a scalar; −∞
    outside of the support of a uniform one.
    """
    terms = []
    for _, part, prior, closure, _ in module.named_priors():
        value = closure(part)
        if isinstance(prior, Uniform) and not prior.support.check(value).all():
            terms.append(value.new_tensor(-math.inf))
        else:
            terms.append(prior.log_prob(value).sum())
    return torch.stack(terms).sum() if terms else torch.zeros((), device="cpu")


class ModerateLengthscalePrior(Prior):
    """Lengthscales ℓ near 1, the side of the unit cube: log p = −w (ℓ² + ℓ⁻²) + constant.

    Unlike a log-normal prior it all but excludes what is far shorter than the points of a small
    sample are apart, where the likelihood of few values takes any function for noise.

    Args:
        weight: w.

    References:
        The form that Optuna's ``GPSampler`` takes for inverse squared lengthscales.
    """

    arg_constraints: dict[str, Any] = {"weight": constraints.positive}
    support = constraints.positive
    weight: Tensor

    def __init__(self, weight: float = 0.1) -> None:
        super().__init__(validate_args=False)
        self.register_buffer("weight", torch.as_tensor(weight, device="cpu"))

    def log_prob(self, value: Tensor) -> Tensor:
        return -self.weight * (value.square() + value.square().reciprocal())

    def expand(self, batch_shape: Any, _instance: Any = None) -> "ModerateLengthscalePrior":
        """Return itself: it is the same for every lengthscale."""
        return self

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return the mode, 1, from which a fit may be started again."""
        return torch.ones(sample_shape, device="cpu").to(self.weight)


def _coordinate(
    parameter: Tensor, bounds: Interval | None
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return the coordinate of a raw parameter, and the function from coordinates to raw parameters
    that they stand for; it keeps a gap that rounding does not close from its bounds.
    """
    if bounds is None:
        return parameter.detach().clone(), lambda value: value
    to_raw = bounds.inverse_transform
    natural = bounds.transform(parameter)
    lower = bounds.lower_bound.to(parameter)
    upper = bounds.upper_bound.to(parameter)
    if _is_bounded(lower) and _is_bounded(upper):
        gap = _gap(torch.ones_like(upper))
        width = upper - lower
        value = torch.logit((natural - lower) / width, eps=gap)
        return value, lambda value: to_raw(
            lower + width * torch.sigmoid(value).clamp(gap, 1.0 - gap)
        )
    bound, sign = (lower, 1.0) if _is_bounded(lower) else (upper, -1.0)
    gap = _gap(bound)
    value = (sign * (natural - bound)).clamp_min(gap).log()
    return value, lambda value: to_raw(bound + sign * value.exp().clamp_min(gap))


def _moved(to_raw: Callable[[Tensor], Tensor], origin: Tensor, shift: Tensor) -> Tensor:
    return to_raw(origin + shift)


def _floor(bounds: Interval | None) -> float:
    if bounds is None or not _is_bounded(bounds.lower_bound) or _is_bounded(bounds.upper_bound):
        return -math.inf
    lower = bounds.lower_bound.max().item()
    return math.log(1e-3 * lower) if lower > 0.0 else -math.inf  # as far above the bound at least


def _lengthscale_coordinates(kernel: Kernel, X: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Return the limits of coordinates by the ``id`` of the lengthscales' parameters."""
    return {
        id(part.raw_lengthscale): _between(
            part.raw_lengthscale, part.raw_lengthscale_constraint, *ends
        )
        for part, *ends in lengthscale_limits(kernel, X)
    }


def _support_coordinates(module: Module) -> dict[int, tuple[Tensor, Tensor]]:
    """Return the limits of coordinates by the ``id`` of the parameters with uniform priors: a
    little inside of their supports, as densities may be 0 on the ends, and rounding leads there.
    """
    limits = {}
    for _, part, prior, closure, _ in module.named_priors():
        if not isinstance(prior, Uniform):
            continue
        with torch.enable_grad():
            value = closure(part)
            total = value.sum()
        for _, raw, bounds in part.named_parameters_and_constraints():
            own = raw if bounds is None else bounds.transform(raw)
            # Not one that the prior is of a function of, or that is equal by chance
            if not (raw.requires_grad and value.requires_grad and torch.equal(own, value)):
                continue
            if torch.autograd.grad(total, raw, retain_graph=True, allow_unused=True)[0] is None:
                continue
            lower, upper = (end.to(raw).expand_as(raw) for end in (prior.low, prior.high))
            largest = torch.maximum(lower.abs(), upper.abs())
            rounding = 8.0 * torch.finfo(raw.dtype).eps * largest
            gap = torch.maximum(_gap(torch.ones_like(raw)) * (upper - lower), rounding)
            limits[id(raw)] = _between(raw, bounds, lower + gap, upper - gap)
    return limits


def _between(raw: Tensor, bounds: Interval | None, *ends: Tensor) -> tuple[Tensor, Tensor]:
    """Return the coordinates of a raw parameter at the ends of a range, as far as this lies within
    the user's bounds.
    """
    coordinates = []
    for end in ends:
        natural = end.to(raw)
        if bounds is not None:
            inside = natural.clamp(bounds.lower_bound.to(raw), bounds.upper_bound.to(raw))
            natural = bounds.inverse_transform(inside)
        coordinates.append(_coordinate(natural, bounds)[0])
    return torch.minimum(*coordinates), torch.maximum(*coordinates)


def _is_bounded(bound: Tensor) -> bool:
    return bool((bound.abs() < math.inf).all())


def _gap(bound: Tensor) -> float:
    # On the bound itself the raw value may be infinite
    least = math.sqrt(torch.finfo(torch.float64).eps)
    return max(least, 8.0 * torch.finfo(bound.dtype).eps * bound.abs().max().item())
