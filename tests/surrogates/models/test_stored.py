"""A model that is saved and loaded is the same model."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from botorch.models.kernels.categorical import CategoricalKernel
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import Log, Standardize
from gpytorch.constraints import GreaterThan, Interval, Positive
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.likelihoods import (
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    HadamardGaussianLikelihood,
)
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from gpytorch.priors import GammaPrior, NormalPrior, UniformPrior
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from surrogates import (
    CG,
    PathwiseGP,
    TanimotoKernel,
    VariationalGP,
    fit,
    gaussian_likelihood,
    multi_task_kernel,
)
from surrogates.functions.tasks import TaskKernel
from surrogates.models.stored import METADATA
from surrogates.rules.hyperparameters import ModerateLengthscalePrior, log_prior
from tests import problems

pytestmark = pytest.mark.filterwarnings("ignore:Data .* is not standardized")


def data(m: int = 1, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(30, 3, generator=generator, dtype=dtype)
    Y = 7.0 + torch.stack([(5.0 * X * (k + 1)).sin().sum(1) for k in range(m)], 1)
    return X, Y


def same(model: PathwiseGP, path: Path, **settings: Any) -> PathwiseGP:
    """Save and load a model; require that it is the same."""
    model.eval().save(path)
    loaded = PathwiseGP.load(path, **settings)
    X = model._given_inputs[..., :4, :] + 0.1
    X = X if X.ndim == 2 else X[0]
    before = model.posterior(X)
    after = loaded.posterior(X)
    assert torch.equal(after.mean, before.mean)
    assert torch.equal(after.variance, before.variance)
    assert model.state_dict().keys() == loaded.state_dict().keys()
    for module in ("covar_module", "mean_module", "likelihood"):
        described = sorted(str(getattr(loaded, module)).splitlines())
        assert described == sorted(str(getattr(model, module)).splitlines())
    return loaded


def test_a_fitted_model_with_the_defaults_is_the_same(tmp_path: Path) -> None:
    model = fit(PathwiseGP(*data(), seed=3, num_paths=32))
    loaded = same(model, tmp_path / "model.safetensors")
    X = data()[0][:5]
    assert torch.equal(loaded.paths(4)(X), model.paths(4)(X))
    assert (loaded.seed, loaded.num_paths) == (3, 32)


def test_it_can_be_fitted_again_as_before(tmp_path: Path) -> None:
    model = PathwiseGP(*data())
    loaded = same(model, tmp_path / "model")
    fit(model)
    fit(loaded)
    assert torch.equal(loaded.covar_module.lengthscale, model.covar_module.lengthscale)
    assert torch.equal(loaded.likelihood.noise, model.likelihood.noise)


@pytest.mark.parametrize(
    "kernel",
    [
        ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=3), outputscale_prior=GammaPrior(2.0, 0.5)),
        RBFKernel(active_dims=(0, 2)) * PeriodicKernel(active_dims=(1,)) + MaternKernel(nu=0.5),
        ScaleKernel(RQKernel()),
        RBFKernel(lengthscale_constraint=Interval(0.1, 4.0)),
        RBFKernel(lengthscale_prior=UniformPrior(0.1, 4.0)),
        TanimotoKernel(),
        MaternKernel(nu=2.5, lengthscale_prior=ModerateLengthscalePrior()),
        CategoricalKernel(active_dims=(0,)) * RBFKernel(active_dims=(1, 2)),
        RBFKernel(
            ard_num_dims=3,
            lengthscale_constraint=Interval(torch.tensor([0.1, 0.2, 0.3]), torch.full((3,), 4.0)),
            lengthscale_prior=GammaPrior(torch.tensor([2.0, 3.0, 4.0]), torch.ones(3)),
        ),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_kernels_are_rebuilt(kernel: Kernel, tmp_path: Path) -> None:
    model = PathwiseGP(*data(), covar_module=kernel.double())
    again = same(model, tmp_path / "model")
    priors = {name: (prior, value(of)) for name, of, prior, value, _ in model.named_priors()}
    for name, _, prior, _, _ in again.named_priors():
        before, value = priors.pop(name)
        assert torch.equal(prior.log_prob(value), before.log_prob(value))
    assert not priors


BOUNDS = torch.tensor([[0.0] * 3, [2.0] * 3], dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:Data .* is not contained to the unit cube")
@pytest.mark.parametrize(
    "settings",
    [
        {"reverse": True},
        {"transform_on_train": False},
        {"transform_on_eval": False},
        {"transform_on_fantasize": False},
        {"center": 0.0, "min_range": 0.1, "learn_bounds": True},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_of_the_input_transform_are_rebuilt(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    transform = Normalize(3, bounds=BOUNDS, **settings)
    loaded = same(PathwiseGP(*data(), input_transform=transform), tmp_path / "model")
    for name, value in settings.items():
        assert getattr(loaded.input_transform, name) == value
    assert loaded.input_transform.learn_bounds == settings.get("learn_bounds", False)


def test_bounds_of_every_data_set_are_rebuilt(tmp_path: Path) -> None:
    X, Y = data()
    transform = Normalize(3, batch_shape=torch.Size([2]))
    model = PathwiseGP(torch.stack([X, 2.0 * X]), torch.stack([Y, -Y]), input_transform=transform)
    same(model, tmp_path / "model")


def test_the_least_deviation_of_the_outcome_transform_is_rebuilt(tmp_path: Path) -> None:
    transform = Standardize(1, min_stdv=1e3)
    loaded = same(PathwiseGP(*data(), outcome_transform=transform), tmp_path / "model")
    assert loaded.outcome_transform._min_stdv == 1e3


@pytest.mark.parametrize(
    "settings",
    [
        {"train_Yvar": 0.1},
        {"mean_module": ZeroMean()},
        {"outcome_transform": None},
        {"input_transform": Normalize(3)},
        {"likelihood": GaussianLikelihood()},
        {"likelihood": gaussian_likelihood(0.01)},
        {"solver": CG(None, tolerance=1e-6), "num_paths": 16},
    ],
    ids=lambda settings: next(iter(settings)),
)
@pytest.mark.parametrize("m", [1, 2])
def test_settings_are_rebuilt(settings: dict[str, Any], m: int, tmp_path: Path) -> None:
    X, Y = data(m)
    settings = dict(settings)
    if "train_Yvar" in settings:
        settings["train_Yvar"] = torch.full_like(Y, 0.1)
    model = PathwiseGP(X, Y, **settings)
    same(model, tmp_path / "model", **{k: v for k, v in settings.items() if k == "solver"})


def test_tasks_with_a_noise_of_their_own_are_rebuilt(tmp_path: Path) -> None:
    X, Y = data()
    tasks = torch.arange(len(X)).unsqueeze(-1) % 2
    likelihood = HadamardGaussianLikelihood(2, task_feature_index=-1)
    likelihood.noise = torch.tensor([[0.01], [0.3]])
    kernel = multi_task_kernel(4, 2)
    same(
        PathwiseGP(torch.cat([X, tasks], 1), Y, covar_module=kernel, likelihood=likelihood),
        tmp_path / "model",
    )


def test_one_noise_of_several_data_sets_is_rebuilt(tmp_path: Path) -> None:
    X, Y = data()
    likelihood = gaussian_likelihood(0.01)
    model = PathwiseGP(torch.stack([X, 0.5 * X]), torch.stack([Y, -Y]), likelihood=likelihood)
    same(model, tmp_path / "model")


def test_a_noise_of_every_output_is_rebuilt(tmp_path: Path) -> None:
    likelihood = GaussianLikelihood(batch_shape=torch.Size([2]))
    same(PathwiseGP(*data(2), likelihood=likelihood), tmp_path / "model")


def test_settings_of_a_kernel_of_tasks_are_rebuilt(tmp_path: Path) -> None:
    X, Y = data()
    X = torch.cat([X, torch.arange(len(X)).unsqueeze(-1) % 2], 1)
    tasks = TaskKernel(2, target_task_index=1, unit_scale_for_target=False, active_dims=(3,))
    model = PathwiseGP(X, Y, covar_module=RBFKernel(active_dims=(0, 1, 2)) * tasks.double())
    before = torch.random.get_rng_state()
    model.save(tmp_path / "model")
    assert torch.equal(torch.random.get_rng_state(), before)
    loaded = same(model, tmp_path / "model")
    kernel = loaded.covar_module.kernels[1]
    assert (kernel.target_task_index, kernel.unit_scale_for_target) == (1, False)


def test_files_of_the_first_version_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model"
    X, Y = data()
    model = PathwiseGP(X, Y, input_transform=Normalize(3))
    model.save(path)
    with safe_open(path, "pt") as file:
        description = json.loads(file.metadata()[METADATA])
    del description["likelihood"]
    for name in ("input_transform", "outcome_transform"):
        del description[name]["settings"]
    save_file(load_file(path), path, {METADATA: json.dumps(description | {"version": 1})})
    again = PathwiseGP.load(path)
    assert torch.equal(again.likelihood.noise, model.likelihood.noise)
    assert torch.equal(again.posterior(X[:3]).mean, model.posterior(X[:3]).mean)


def test_precision_and_what_is_not_learnt_are_kept(tmp_path: Path) -> None:
    model = PathwiseGP(*data(dtype=torch.float32))
    model.likelihood.requires_grad_(False)
    loaded = same(model, tmp_path / "model")
    assert loaded.train_targets.dtype == torch.float32
    assert not loaded.likelihood.noise_covar.raw_noise.requires_grad
    assert loaded.covar_module.raw_lengthscale.requires_grad


class OwnKernel(RBFKernel):
    pass


EXP = {"transform": torch.exp, "inv_transform": torch.log}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"covar_module": OwnKernel()}, "kernel must have a class and settings that files can na"),
        ({"mean_module": LinearMean(3)}, "mean must have"),
        ({"outcome_transform": Log()}, "outcome transform must have"),
        ({"input_transform": Normalize(3, indices=[0])}, "input transform must have"),
        (
            {"covar_module": RBFKernel(lengthscale_constraint=Positive(**EXP))},
            "constraint of raw_lengthscale must have .*, got Positive",
        ),
        (
            {"covar_module": RBFKernel(lengthscale_constraint=GreaterThan(0.1, **EXP))},
            "constraint of raw_lengthscale must have .*, got GreaterThan",
        ),
        (
            {
                "covar_module": RBFKernel(
                    lengthscale_prior=NormalPrior(0.0, 1.0, transform=torch.log)
                )
            },
            "prior lengthscale_prior must have .*, got NormalPrior",
        ),
        (
            {
                "likelihood": FixedNoiseGaussianLikelihood(
                    torch.full((30,), 0.1, dtype=torch.float64), learn_additional_noise=True
                )
            },
            "must be one that a file can hold.*second_noise_covar.*Keep the model's `state_dict",
        ),
    ],
)
def test_what_a_file_cannot_hold_is_named(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = PathwiseGP(*data(), **settings)
    with pytest.raises(TypeError, match=f"(?s){message}"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="got VariationalGP"):
        VariationalGP(*data()).save(tmp_path / "model")


def test_other_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="is no model of scalable_bo"):
        PathwiseGP.load(other)
    save_file({"x": torch.zeros(1)}, other)
    with pytest.raises(ValueError, match="another safetensors file"):
        PathwiseGP.load(other)
    newer = json.dumps({"format": "scalable_bo model", "version": 99})
    save_file({"x": torch.zeros(1)}, other, {METADATA: newer})
    with pytest.raises(ValueError, match="is of version 99"):
        PathwiseGP.load(other)
    with pytest.raises(OSError, match="absent"):
        PathwiseGP.load(tmp_path / "absent")


def test_standardised_targets_are_kept_to_the_last_bit(tmp_path: Path) -> None:
    X, Y = data()
    model = PathwiseGP(X, 1e6 + Y, outcome_transform=Standardize(1))
    loaded = same(model, tmp_path / "model")
    assert torch.equal(loaded.train_targets, model.train_targets)


def test_noise_given_beside_an_inferred_one_is_kept(tmp_path: Path) -> None:
    X = problems.uniform(12, 2)
    Y = X.sum(1, keepdim=True)
    model = PathwiseGP(X, Y).condition_on_observations(X[:2] + 0.1, Y[:2], 0.3 * Y[:2])
    model.save(tmp_path / "model")
    again = PathwiseGP.load(tmp_path / "model")
    for noisy in (False, True):
        laws = [each.posterior(X[:3], observation_noise=noisy) for each in (model, again)]
        torch.testing.assert_close(laws[1].variance, laws[0].variance)


def test_memory_that_runs_out_while_saving_is_no_wrong_model(tmp_path: Path) -> None:
    model = PathwiseGP(torch.rand(5, 1).double(), torch.rand(5, 1).double())
    with (
        patch("surrogates.models.stored.Stored.build", side_effect=torch.OutOfMemoryError),
        pytest.raises(torch.OutOfMemoryError),
    ):
        model.save(tmp_path / "model")


@pytest.mark.parametrize("outputs", [[1], [2, 0]])
def test_a_subset_of_the_outputs_has_the_same_paths(outputs: list[int], tmp_path: Path) -> None:
    subset = PathwiseGP(*data(3), solver=CG()).subset_output(outputs)
    subset.save(tmp_path / "model")
    loaded = PathwiseGP.load(tmp_path / "model", solver=CG())
    X = data()[0][:4] + 0.1
    torch.testing.assert_close(loaded.paths(5)(X), subset.paths(5)(X))


def test_the_prior_of_a_constant_mean_is_rebuilt(tmp_path: Path) -> None:
    mean = ConstantMean(constant_prior=NormalPrior(0.0, 1.0)).double()
    loaded = same(PathwiseGP(*data(), mean_module=mean), tmp_path / "model")
    assert log_prior(loaded).item() == pytest.approx(
        log_prior(mean).item()
        + log_prior(loaded.likelihood).item()
        + log_prior(loaded.covar_module).item()
    )
