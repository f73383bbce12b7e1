"""Models as files: tensors by safetensors, and beside them, as JSON, what they belong to.

Modules of known classes alone are kept, each as its class, the arguments that its tensors do not
tell, its constraints and its priors; nothing that a file names is imported or run. No file is
written that could not be read: every model is built again from its description first.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import Standardize
from botorch.models.utils.priors import BetaPrior
from botorch.settings import validate_input_scaling
from gpytorch import Module, constraints, priors
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    HadamardGaussianLikelihood,
    Likelihood,
)
from gpytorch.means import ConstantMean, Mean, ZeroMean
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from surrogates.atomic import write_atomically
from surrogates.operators.forms import FORMS, KernelForm
from surrogates.rules.hyperparameters import ModerateLengthscalePrior

FORMAT = "scalable_bo model"
VERSION = 3
METADATA = "model"
INPUTS = "train_X"
TARGETS = "train_targets"  # standardised, as the model has them
NOISE = "noise"  # of every target, standardised
PARAMETER = "state."
REMEDY = "Keep the model's `state_dict()`, and build the model anew to load it."

# The arguments of every class that are attributes of the same name; its noise is a parameter
LIKELIHOODS: dict[type[Likelihood], tuple[str, ...]] = {
    GaussianLikelihood: (),
    FixedNoiseGaussianLikelihood: (),
    HadamardGaussianLikelihood: ("num_tasks", "task_feature_index"),
}
MEANS = (ConstantMean, ZeroMean)
TRANSFORMS = ("input_transform", "outcome_transform")  # of a model
# The arguments of `Normalize` that are attributes of the same name and no tensors
NORMALIZE: tuple[str, ...] = ("center", "min_range", "learn_bounds", "reverse")
NORMALIZE += ("transform_on_train", "transform_on_eval", "transform_on_fantasize")
# The attributes of every class that its constructor takes, in their order
CONSTRAINTS: dict[type[constraints.Interval], tuple[str, ...]] = {
    constraints.Interval: ("lower_bound", "upper_bound"),
    constraints.GreaterThan: ("lower_bound",),
    constraints.LessThan: ("upper_bound",),
    constraints.Positive: (),
}
# The parameter of a prior that GPyTorch does not name after its parameter
PRIOR_OF = {"IndexKernelPrior": "_lower_triangle_corr", "mean_prior": "constant"}
PRIORS: dict[type[priors.Prior], tuple[str, ...]] = {
    priors.GammaPrior: ("concentration", "rate"),
    priors.LogNormalPrior: ("loc", "scale"),
    priors.NormalPrior: ("loc", "scale"),
    priors.HalfCauchyPrior: ("scale",),
    priors.UniformPrior: ("low", "high"),
    BetaPrior: ("concentration1", "concentration0"),
    ModerateLengthscalePrior: ("weight",),
}


class Stored(NamedTuple):
    """A model's file: the arguments of its constructor, and what is to take its place then."""

    arguments: dict[str, Any]
    state: dict[str, Tensor]
    targets: Tensor
    noise: Tensor | None
    fixed: list[str]
    began_homoscedastic: bool
    stream_numbers: list[int] | None  # of a subset of the outputs

    def build(self, kind: Callable[..., Any], **settings: Any) -> Any:
        """Return the model that was stored, made by ``kind`` with further ``settings``."""
        with validate_input_scaling(False):  # which was seen to when it was made
            model = kind(**self.arguments, **settings)
        model.load_state_dict(self.state)
        model.set_train_data(targets=self.targets, strict=False)
        if self.noise is not None:
            model.likelihood.noise_covar.noise = self.noise
            model._began_homoscedastic = self.began_homoscedastic
        model._stream_numbers = None if self.stream_numbers is None else tuple(self.stream_numbers)
        for name, value in model.named_parameters():
            value.requires_grad_(name not in self.fixed)
        return model.eval()


def save_model(model: Any, inputs: Tensor, settings: Mapping[str, int | None], path: Path) -> None:
    """Write a model.

    Args:
        inputs: the training inputs in the units that they were given in.
        settings: further arguments of its constructor.

    Raises:
        TypeError: naming a module whose class or settings are not among the known ones, or why the
            model cannot be built again.
        OSError: if the file cannot be written.
    """
    likelihood = model.likelihood
    kind = type(likelihood)
    if kind not in LIKELIHOODS:
        raise _unknown("likelihood", likelihood)
    known_noise = kind is FixedNoiseGaussianLikelihood
    description = {
        "format": FORMAT,
        "version": VERSION,
        "settings": dict(settings),
        "num_outputs": model.num_outputs,
        "covar_module": _kernel_of(model.covar_module),
        "mean_module": _mean_of(model.mean_module),
        "likelihood": {
            "type": kind.__name__,
            "arguments": {name: getattr(likelihood, name) for name in LIKELIHOODS[kind]},
        },
        "noise_covar": None if known_noise else _own_of(likelihood.noise_covar),
        "began_homoscedastic": model._began_homoscedastic,
        "stream_numbers": model._stream_numbers,
        "fixed": [name for name, value in model.named_parameters() if not value.requires_grad],
        **{name: _transform_of(model, name) for name in TRANSFORMS},
    }
    tensors = {PARAMETER + name: value for name, value in model.state_dict().items()}
    tensors |= {INPUTS: inputs, TARGETS: model.train_targets}
    if known_noise:
        tensors[NOISE] = likelihood.noise
    kept = {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
    try:
        text = json.dumps(description)
        with torch.random.fork_rng(devices=[]):  # some kernels draw their first parameters
            _stored(json.loads(text), kept).build(type(model))
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(
            f"The model must be one that a file can hold, and building it again failed:"
            f" {str(error).rstrip('.')}. {REMEDY}"
        ) from error
    write_atomically(path, save(kept, {METADATA: text}))


def load_model(path: Path) -> Stored:
    """Read what :func:`save_model` has written.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is no such file, is damaged, or of a newer version.
    """
    try:
        with safe_open(path, "pt") as file:
            description = json.loads((file.metadata() or {}).get(METADATA, "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no model of scalable_bo, or damaged: {error}.") from error
    if description.get("format") != FORMAT:
        raise ValueError(f"{path} is no model of scalable_bo, but another safetensors file.")
    if description["version"] > VERSION:
        raise ValueError(
            f"{path} is of version {description['version']}, and this one reads up to {VERSION}."
            " Update scalable_bo."
        )
    return _stored(description, tensors)


def _stored(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Stored:
    inputs = tensors[INPUTS]
    targets = tensors[TARGETS]
    columns = targets.mT if description["num_outputs"] > 1 else targets.unsqueeze(-1)
    noise = tensors.get(NOISE)
    likelihood = None
    if noise is None:
        of = description.get("likelihood", {"type": "GaussianLikelihood", "arguments": {}})
        kind = _named(of["type"], LIKELIHOODS)
        batch = tensors[f"{PARAMETER}likelihood.noise_covar.raw_noise"].shape[:-1]
        likelihood = kind(**of["arguments"], batch_shape=batch).to(inputs)
        _give(likelihood.noise_covar, description["noise_covar"])
    of = description["mean_module"]
    mean = _named(of["type"], MEANS)(batch_shape=torch.Size(of["batch_shape"]))
    arguments = {
        "train_X": inputs,
        "train_Y": columns,
        "train_Yvar": None if noise is None else torch.ones_like(columns),
        "likelihood": likelihood,
        "covar_module": _kernel_from(description["covar_module"]).to(inputs),
        "mean_module": _give(mean, of).to(inputs),
        **{name: _transform_from(description[name], inputs) for name in TRANSFORMS},
        **description["settings"],
    }
    state = {
        name.removeprefix(PARAMETER): value
        for name, value in tensors.items()
        if name.startswith(PARAMETER)
    }
    began = description.get("began_homoscedastic", False)
    numbers = description.get("stream_numbers")
    return Stored(arguments, state, targets, noise, description["fixed"], began, numbers)


def _kernel_of(kernel: Kernel) -> dict[str, Any]:
    settings = FORMS.get(type(kernel), KernelForm()).settings
    if settings is None:
        raise _unknown("kernel", kernel)
    dims = kernel.active_dims
    arguments = {name: getattr(kernel, name) for name in settings}
    arguments["batch_shape"] = list(kernel.batch_shape)
    arguments["active_dims"] = None if dims is None else dims.tolist()
    arguments = {name: value for name, value in arguments.items() if value is not None}
    parts = [kernel.base_kernel] if isinstance(kernel, ScaleKernel) else []
    if isinstance(kernel, AdditiveKernel | ProductKernel):
        parts = list(kernel.kernels)
        arguments = {}
    return {
        "type": type(kernel).__name__,
        "arguments": arguments,
        "parts": [_kernel_of(part) for part in parts],
        **_own_of(kernel),
    }


def _kernel_from(table: Mapping[str, Any]) -> Kernel:
    kind = _named(table["type"], FORMS)
    parts = [_kernel_from(part) for part in table["parts"]]
    arguments = dict(table["arguments"])
    if "batch_shape" in arguments:
        arguments["batch_shape"] = torch.Size(arguments["batch_shape"])
    return _give(kind(*parts, **arguments), table)


def _mean_of(mean: Mean) -> dict[str, Any]:
    if type(mean) not in MEANS:
        raise _unknown("mean", mean)
    return {
        "type": type(mean).__name__,
        "batch_shape": list(mean.batch_shape),
        **_own_of(mean),
    }


def _own_of(module: Module) -> dict[str, Any]:
    """Return the constraints and priors of a module, without those of its parts."""
    found: dict[str, Any] = {"constraints": {}, "priors": {}}
    for name in module._parameters:
        constraint = module.constraint_for_parameter_name(name)
        if constraint is None:
            continue
        own: dict[str, Any] = {
            "type": type(constraint).__name__,
            "lower_bound": constraint.lower_bound.tolist(),
            "upper_bound": constraint.upper_bound.tolist(),
            "transforms": constraint.enforced,
        }
        if type(constraint) not in CONSTRAINTS or (
            str(constraint._transform) != str(_constraint_from(own)._transform)
        ):
            raise _unknown(f"constraint of {name}", constraint)
        found["constraints"][name] = own
    for name, (prior, _, _) in module._priors.items():
        if type(prior) not in PRIORS or getattr(prior, "_transform", None) is not None:
            raise _unknown(f"prior {name}", prior)
        found["priors"][name] = {
            "type": type(prior).__name__,
            "arguments": {key: getattr(prior, key).tolist() for key in PRIORS[type(prior)]},
        }
    return found


def _constraint_from(table: Mapping[str, Any]) -> constraints.Interval:
    kind = _named(table["type"], CONSTRAINTS)
    plain = {} if table["transforms"] else {"transform": None}
    return kind(*map(table.get, CONSTRAINTS[kind]), **plain)


def _give(module: Any, table: Mapping[str, Any]) -> Any:
    """Return a module with its constraints and priors; the tensors of a state come later."""
    for name, of in table["constraints"].items():
        module.register_constraint(name, _constraint_from(of))
    for name, of in table["priors"].items():
        prior = _named(of["type"], PRIORS)(*map(torch.as_tensor, of["arguments"].values()))
        module.register_prior(name, prior, PRIOR_OF.get(name, name.removesuffix("_prior")))
    return module


def _transform_of(model: Any, name: str) -> dict[str, Any] | None:
    transform = getattr(model, name, None)
    if transform is None:
        return None
    if type(transform) is Normalize and not hasattr(transform, "indices"):
        settings = {key: getattr(transform, key) for key in NORMALIZE}
        d = transform.coefficient.shape[-1]
        return {"d": d, "batch_shape": list(transform.batch_shape), "settings": settings}
    if type(transform) is Standardize and transform._outputs is None:
        settings = {"min_stdv": transform._min_stdv}
        batch_shape = list(transform._batch_shape)
        return {"m": transform._m, "batch_shape": batch_shape, "settings": settings}
    raise _unknown(name.replace("_", " "), transform)


def _transform_from(table: Mapping[str, Any] | None, like: Tensor) -> Any:
    if table is None:
        return None
    settings = {"batch_shape": torch.Size(table["batch_shape"]), **table.get("settings", {})}
    if "m" in table:
        return Standardize(table["m"], **settings)
    unit = like.new_tensor([[0.0], [1.0]]).repeat(*settings["batch_shape"], 1, table["d"])
    return Normalize(table["d"], bounds=unit, **settings)


def _named(name: str, kinds: Iterable[type[Any]]) -> type[Any]:
    found = {kind.__name__: kind for kind in kinds}
    if name not in found:
        raise ValueError(f"The model's file names {name!r}, which this version does not know.")
    return found[name]


def _unknown(what: str, module: Any) -> TypeError:
    return TypeError(
        f"The model's {what} must have a class and settings that files can name, got"
        f" {type(module).__name__}. {REMEDY}"
    )
