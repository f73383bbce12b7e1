"""One call that learns hyperparameters from data of any size, by a method that suits the model."""

import logging
import math
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import Kernel
from torch import Tensor

from surrogates import checks
from surrogates.callers import warn
from surrogates.fitting.account import FineStructureWarning, NoSignalWarning
from surrogates.fitting.batched import BatchedGP
from surrogates.fitting.evidence import Evidence
from surrogates.fitting.exact import fit_exact
from surrogates.fitting.iterative import fit_iterative
from surrogates.fitting.minibatch import fit_minibatch
from surrogates.fitting.sample import fit_sample
from surrogates.fitting.search import LITTLE_NOISE, Search, finer_starts, is_function_of_its_parts
from surrogates.fitting.simpler import simplify
from surrogates.fitting.staged import WHITE_NOISE, Stages
from surrogates.fitting.subsets import fit_subsets
from surrogates.models.fresh import EXACT_UP_TO
from surrogates.operators.linalg import CHEAP_FACTOR_UP_TO
from surrogates.restoring import restored_on_failure
from surrogates.rules.finite_features_fit import fit_finite_features
from surrogates.rules.hyperparameters import ModelT, StepCallback, check_model
from surrogates.rules.limits import INFERRED_NOISE, lengthscale_limits
from surrogates.rules.variational_fit import fit_variational

logger = logging.getLogger(__name__)

SAMPLE_IS_DENSE_UP_TO = 3000  # a thousand of them see what all see
REFINE_UP_TO = 10_000
JUDGE_FROM = 50  # data; of fewer, the priors tell signal from noise
# The share of points whose errors resemble those of their nearest neighbours more than those of
# other points. Among many points a lower share is certain, too, but not worth a warning.
LEAST_NEARER = 0.6
NEEDED_ERRORS = 5.0  # standard errors by which a share must exceed that of a right model
SAMPLES = 4  # of a thousand data, where all of them are too many to refine on
# From hyperparameters that are nearly right
REFINEMENT: dict[str, Any] = {"num_steps": 8, "first_step": 0.1}

METHODS: dict[str, Callable[..., Any]] = {
    "exact": fit_exact,
    "subsets": fit_subsets,
    "minibatch": fit_minibatch,
    "iterative": fit_iterative,
    "sample": fit_sample,
    "finite_features": fit_finite_features,
    "variational": fit_variational,
}


class FitChoice(NamedTuple):
    """Names of functions ``fit_<method>``, each of which goes on from the one before,
    and in one line why they were chosen.
    """

    methods: tuple[str, ...]
    reason: str


@restored_on_failure
def fit(
    model: ModelT,
    method: str | None = None,
    *,
    generator: torch.Generator | None = None,
    callback: StepCallback | None = None,
    **settings: Any,
) -> ModelT:
    """Learn the hyperparameters of ``model`` from its data; return it.

    Methods are run as :func:`choose_fit` says, each from the best hyperparameters before it. From
    50 data on, each must earn its place: the data of up to eight blocks, each of the 1000 nearest
    to a random one (all data, up to 1000), are predicted from the others of their block, and a
    stage is taken if their log density rises by more than two standard errors of the paired
    differences, or, where the likelihood of all data has risen, unless it falls by two. The
    iterative fit is given up after one, two or four steps if that density has fallen by two. The
    exact fit has competitors, ``"simpler"``: lengthscales in proportion, and free ones, both found
    with lengthscales that one expects and without BoTorch's default prior of little noise; the log
    likelihood decides, less what lengthscales cost that are shorter than expected, as
    :mod:`surrogates.fitting.simpler` has it. In the end all of the data are made noise about their
    mean, with the longest lengthscales, if nothing says that there is signal: of the exact fit, if
    no competitor exceeds noise by enough; of other stages, if the marginal likelihood does not
    exceed that of noise by two standard deviations more than fitting noise gains, nor densities by
    two standard errors. A stage that fails leaves the best before it, and says so in the log and
    the account. ``model.fit_account``, a :class:`FitAccount`, has what was tried and why the result
    was taken. The same model and generator give the same hyperparameters.

    Args:
        method: ``"exact"``, ``"sample"``, ``"subsets"``, ``"minibatch"``, ``"iterative"``,
            ``"finite_features"`` or ``"variational"``, the function ``fit_<method>``, alone;
            ``None`` for those of :func:`choose_fit`, judged.
        generator: of what the method draws; seeded by the method if ``None``. The exact fit draws
            nothing.
        callback: called after every step with the steps done and the method's own estimate of its
            objective, in nats.
        settings: further arguments of ``method``.

    Raises:
        TypeError, ValueError: if the method does not exist, or does not take the model, its data or
            the settings, or there are settings without a method.
        FloatingPointError: if a hyperparameter stops being finite in every stage; the model is then
            as it was.
        KeyboardInterrupt: passed on; the model has the best hyperparameters so far, those of the
            best stage before the interrupted one if there is one.

    Warns:
        NoSignalWarning: if all of the data were made noise.
        FineStructureWarning: if the data of an exact fit are likelier with lengthscales that are
            shorter than the kernel's bounds allow, the errors of close neighbours are alike, as
            noise is not, or the posterior is too sure of local means.
    """
    choice = choose_fit(model)  # which also checks the model
    if method is not None:
        choice = FitChoice((checks.one_of("method", method, METHODS),), "as asked for")
    elif settings:
        remedy = f"Choose one, such as `method={choice.methods[0]!r}`."
        raise ValueError(
            f"`settings` must belong to a `method`, got {', '.join(settings)} without one. {remedy}"
        )
    logger.info("%s: %s", " and ".join(f"fit_{name}" for name in choice.methods), choice.reason)
    steps = count(1)
    told = None if callback is None else lambda _, value: callback(next(steps), value)
    evidence = _evidence(model, choice, generator) if method is None else None
    stages = Stages(model, evidence, choice.reason)

    def run(name: str, **own: Any) -> None:
        drawn = {} if name == "exact" else {"generator": generator}
        callback = partial(stages.observe, told) if name == "iterative" else told
        function = partial(METHODS[name], model, callback=callback, **drawn, **own)
        of_all = name == "iterative" or not own.get("restart", True)
        anew = name == "minibatch" and not stages.has_signal
        stages.run(name, function, anew=anew, of_all_data=of_all)

    try:
        for place, name in enumerate(choice.methods):
            # Structure too fine for the sample is in what that takes for noise
            is_between = name == "minibatch" and place + 1 < len(choice.methods)
            if is_between and stages.account.chosen and _has_little_noise(model):
                continue
            again = name in choice.methods[:place]
            run(name, **(settings if method else _settings(name, model, again)))
        if choice.methods == ("exact",) and evidence is not None:
            stages.simplify(partial(simplify, model, callback=told))
        stages.compare_with_noise()
    finally:
        object.__setattr__(model, "fit_account", stages.account)
    if not stages.account.chosen and stages.failure is not None:
        raise stages.failure
    if stages.account.chosen == WHITE_NOISE:
        _warn_of_noise(model, choice.methods[0])
    if choice.methods == ("exact",) and is_function_of_its_parts(model) and _warn_of_bounds(model):
        return model
    if evidence is not None:
        _warn_of_structure(model, evidence)
    return model


def choose_fit(model: SingleTaskGP) -> FitChoice:
    """Return the methods that ``fit`` takes for ``model``, and the reason.

    Up to 1000 points :func:`fit_exact`, from 50 on against simpler explanations. Beyond,
    :func:`fit_sample` on 1000 random points, four times as many beyond 10 000, which noise does not
    lead astray; then, from 3000 points on, :func:`fit_minibatch`, which sees structure too fine for
    the sample, but before all data only if a tenth or more is left as noise; then all data: up to
    2000 points by :func:`fit_sample` of them all from there, up to 10 000 by eight steps of
    :func:`fit_iterative`. Models that learn more than their mean, kernel and noise, such as a warp
    of their inputs, are fitted to the first sample alone. Models of several outputs or data sets
    are fitted by :func:`fit_exact` or not at all, and models with a method of their own by that
    one. What that rests on is in ``docs/measured.md``, "Fits".

    Raises:
        TypeError: if the model is not of the kinds that can be fitted.
        ValueError: if its data are not finite.
    """
    check_model(model)
    checks.floating_tensor("model.train_inputs", model.train_inputs[0])
    checks.floating_tensor("model.train_targets", model.train_targets)
    n = model.train_targets.shape[-1]
    rule = getattr(model, "rule", None)  # of ours
    if rule is not None and (own := rule.own_fit(n)) is not None:
        method, reason = own
        return FitChoice((method,), reason)
    methods: tuple[str, ...] = ("exact",)
    if n <= CHEAP_FACTOR_UP_TO:
        why = f", up to {CHEAP_FACTOR_UP_TO} by the exact marginal likelihood"
    elif model.train_targets.ndim > 1:
        why = " of several outputs or data sets, which only the exact marginal likelihood takes"
    elif not is_function_of_its_parts(model):
        methods = ("sample",)
        why = " of a model that is more than its mean, kernel and noise, by a random sample"
    elif n <= SAMPLE_IS_DENSE_UP_TO:
        limit = EXACT_UP_TO if n <= EXACT_UP_TO else SAMPLE_IS_DENSE_UP_TO
        methods = ("sample", "sample" if n <= EXACT_UP_TO else "iterative")
        why = (
            f", up to {limit} by a random sample, then all data if predictions of left-out data"
            " stay as good"
        )
    elif n <= REFINE_UP_TO:
        methods = ("sample", "minibatch", "iterative")
        why = (
            f", up to {REFINE_UP_TO} by a random sample, then nearest neighbours, then all data, as"
            " long as predictions of left-out data improve"
        )
    else:
        methods = ("sample", "minibatch")
        why = (
            f", beyond {REFINE_UP_TO} by random samples, then nearest neighbours if they predict"
            " left-out data better"
        )
    return FitChoice(methods, f"{n} points{why}")


def _evidence(
    model: SingleTaskGP, choice: FitChoice, generator: torch.Generator | None
) -> Evidence | None:
    """Return random data to judge by, other than those that the methods draw by default; ``None``
    if they cannot judge.
    """
    y = model.train_targets
    is_judged = set(choice.methods) <= {"exact", "sample", "minibatch", "iterative"}
    if not is_judged or y.ndim > 1 or len(y) < JUDGE_FROM:
        return None
    own = torch.Generator().manual_seed(1)
    if generator is not None:
        own.manual_seed(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
    return Evidence(model, own)


def _warn_of_noise(model: SingleTaskGP, method: str) -> None:
    warn(
        f"`fit` takes all {len(model.train_targets)} targets for noise about their mean, and"
        " predicts that mean everywhere: no explanation is likelier by more than hyperparameters"
        " gain on noise alone; see `model.fit_account`. If there is a signal, add data or leave out"
        f" inputs, or take the likeliest explanation, whatever it is, by `fit(model, {method!r})`.",
        NoSignalWarning,
    )


def _warn_of_bounds(model: SingleTaskGP) -> bool:
    """Warn, and return True, if lengthscales that the kernel's bounds exclude are likelier."""
    found = BatchedGP(model)
    index = found.whole
    search = Search(None)
    starts = finer_starts(found, found.X, found.y.var(correction=0).item(), excluded=True)
    likeliest = search.likeliest(found, starts, index)
    if likeliest is found:
        return False
    nats = search.log_posterior(likeliest, index) - search.log_posterior(found, index)
    shortest = min(
        part.lengthscale.min().item()
        for part, _, _ in lengthscale_limits(likeliest.covar_module, found.X)
    )
    warn(
        "`model.covar_module` must allow other lengthscales: the data are at least"
        f" {nats:.0f} nats likelier at {shortest:.1e} than at the best within its bounds, as they"
        " are where inputs lie in clusters, or in large units. Use a kernel without such bounds,"
        f" `ScaleKernel(RBFKernel(ard_num_dims={found.X.shape[1]}))`, or scale the inputs.",
        FineStructureWarning,
    )
    return True


def _warn_of_structure(model: SingleTaskGP, evidence: Evidence) -> None:
    """Warn if close neighbours have errors alike, which the model takes for noise, or if it is sure
    of means that the data do not have.
    """
    misfit = evidence.misfit(model)
    if not _has_little_noise(model) and _exceeds(misfit.nearer, LEAST_NEARER, 0.5):
        found = (
            f"{_share(misfit.nearer)} points have an error closer to that of their nearest"
            " neighbour than to that of a farther one, of noise half have, so that a function of"
            " short distances is taken for noise in some places at least"
        )
    elif _exceeds(misfit.missed, 5 * 0.05, 0.05):  # five times what a right model misses
        found = (
            f"the means of {_share(misfit.missed)} groups of neighbouring data lie outside the 95 %"
            " bands that the model predicts from all others, so that its posterior is too sure"
        )
    else:
        return
    X = model.train_inputs[0]
    part = f"ScaleKernel(RBFKernel(ard_num_dims={X.shape[-1]}))"
    if any(_is_bounded(part) for part, _, _ in lengthscale_limits(model.covar_module, X)):
        remedy = f"Lengthscales are at their lower bound: use `{part}`, which has none."
    else:
        few = f"of a few times {misfit.distance:.0e} of" if misfit.distance else "short beside"
        remedy = (
            f"Use a sum of kernels, `{part} + {part}`, and give the second lengthscales {few} the"
            " inputs' ranges before the fit."
        )
    if not isinstance(model.likelihood, INFERRED_NOISE):
        remedy += " Or give larger noise variances, if those given are too small."
    warn(
        f"`model.covar_module` must describe finer structure: {found}. {remedy}",
        FineStructureWarning,
    )


def _has_little_noise(model: SingleTaskGP) -> bool:
    noise = model.likelihood.noise.mean() / model.train_targets.var()
    return noise.item() < LITTLE_NOISE


def _is_bounded(part: Kernel) -> bool:
    """Whether a lengthscale is the shortest that the kernel's own constraint allows."""
    shortest = part.raw_lengthscale_constraint.lower_bound
    return bool((part.lengthscale <= 1.01 * shortest).any())


def _share(those: Tensor) -> str:
    return f"{those.double().mean():.0%} of {len(those)}"


def _exceeds(those: Tensor, share: float, chance: float) -> bool:
    """Whether so large a share of (n,) is true, and chance does not explain it."""
    error = math.sqrt(chance * (1.0 - chance) / max(len(those), 1))
    return those.double().mean().item() >= max(share, chance + NEEDED_ERRORS * error)


def _settings(name: str, model: SingleTaskGP, again: bool) -> dict[str, Any]:
    """Return the settings of a method that was not asked for by name, run once or ``again``."""
    if name == "iterative":
        return REFINEMENT
    if again:
        return {"sample_size": len(model.train_targets), "restart": False}
    many = name == "sample" and len(model.train_targets) > REFINE_UP_TO
    return {"num_samples": SAMPLES} if many else {}
