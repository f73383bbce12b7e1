"""The posterior is that of the model as it is now, and with a direct solver that of SingleTaskGP,
to rounding.
"""

from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Warp
from torch import Tensor

from surrogates import CG, SDD, Auto, Cholesky, Nystrom, PathwiseGP
from surrogates.models.fresh import EXACT_UP_TO
from tests import problems
from tests.surrogates.models.toy_model import BOUNDS, FEW, MODELS, TIGHT, D, X, Y, Z, law, settings

CHANGES: dict[str, Callable[[PathwiseGP], Any]] = {
    "lengthscale": lambda m: setattr(m.covar_module.base_kernel, "lengthscale", 0.2),
    "noise": lambda m: setattr(m.likelihood, "noise", 0.5),
    "mean": lambda m: setattr(m.mean_module, "constant", 3.0),
    "smoothness": lambda m: setattr(m.covar_module.base_kernel, "nu", 0.5),
    "kernel": lambda m: setattr(m, "covar_module", problems.rbf(0.3).double()),
    "targets": lambda m: m.set_train_data(X, m.train_targets.flip(0)),
    "inputs": lambda m: m.set_train_data(X.flip(0), m.train_targets),
    "fewer": lambda m: m.set_train_data(X[:30], m.train_targets[:30], strict=False),
    "more": lambda m: m.set_train_data(
        torch.cat([X, X + 0.5]), m.train_targets.repeat(2), strict=False
    ),
    "state_dict": lambda m: m.load_state_dict(
        {**m.state_dict(), "mean_module.raw_constant": torch.tensor(2.0).double()}
    ),
    "in_place": lambda m: m.train_targets.mul_(0.5),
}


def assert_same_law(
    first: PathwiseGP, second: PathwiseGP, points: Tensor = Z, **tolerances: float
) -> None:
    for ours, theirs in zip(law(first, points), law(second, points), strict=True):
        torch.testing.assert_close(ours, theirs, **tolerances)


def distance(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", CHANGES)
def test_after_a_change_the_posterior_is_that_of_a_fresh_model(name: str) -> None:
    change = CHANGES[name]
    for make in MODELS.values():
        model = make()
        fresh = make()
        before = law(model)
        change(model)
        fresh.eval()
        change(fresh)
        assert distance(law(model), before) > 1e-3
        assert_same_law(model, fresh, rtol=1e-6, atol=1e-6)


class Weighted(gpytorch.kernels.Kernel):
    """A kernel of a user, with a setting that is no parameter."""

    def __init__(self, weights: Any):
        super().__init__()
        self.weights = weights

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: Any) -> Tensor:
        weights = torch.as_tensor(self.weights, dtype=x1.dtype).flatten()
        distances = x1 - x2 if diag else x1.unsqueeze(-2) - x2.unsqueeze(-3)
        return torch.exp(-(weights * distances).square().sum(-1))


@pytest.mark.parametrize("make", [torch.tensor, tuple, list, lambda values: [tuple(values)]])
def test_after_a_change_of_a_kernels_plain_setting_the_posterior_is_that_of_a_fresh_model(
    make: Callable[[list[float]], Any],
) -> None:
    model, fresh = (
        PathwiseGP(X, Y, covar_module=Weighted(make(weights)))
        for weights in ([1.0, 1.0], [4.0, 1.0])
    )
    before = law(model)
    model.covar_module.weights = make([4.0, 1.0])
    assert distance(law(model), before) > 1e-3
    assert_same_law(model, fresh)
    kept = model.prediction_strategy
    law(model)
    assert model.prediction_strategy is kept


class WeightedKernel(gpytorch.kernels.RBFKernel):
    """A kernel of inputs that plain attributes change."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = np.ones(D)
        self.powers = {"of all": {1}, "of none": [None, np.float32(2.0)]}
        self.warp: Callable[[Tensor], Tensor] = torch.sin

    def forward(self, x1: Tensor, x2: Tensor, **options: Any) -> Any:
        def warped(x: Tensor) -> Tensor:
            return self.warp(x * torch.from_numpy(self.weights)) ** max(self.powers["of all"])

        return super().forward(warped(x1), warped(x2), **options)


@pytest.mark.parametrize(
    "change",
    [
        lambda kernel: setattr(kernel, "weights", np.full(D, 3.0)),
        lambda kernel: kernel.weights.__imul__(3.0),
        lambda kernel: kernel.powers["of all"].add(2),
        lambda kernel: kernel.powers.update({"of all": {3}}),
        lambda kernel: setattr(kernel, "warp", torch.cos),
    ],
    ids=["array", "array in place", "set", "dictionary", "function"],
)
def test_after_a_change_of_a_plain_attribute_the_posterior_is_that_of_a_fresh_model(
    change: Callable[[Any], Any],
) -> None:
    model = PathwiseGP(X, Y, covar_module=WeightedKernel().double())
    kept = model.posterior(Z).mean
    assert torch.equal(model.posterior(Z).mean, kept)
    change(model.covar_module)
    fresh = PathwiseGP(X, Y, covar_module=model.covar_module)
    fresh.likelihood.load_state_dict(model.likelihood.state_dict())
    fresh.mean_module.load_state_dict(model.mean_module.state_dict())
    assert not torch.allclose(model.posterior(Z).mean, kept)
    assert_same_law(model, fresh)


@pytest.mark.parametrize(
    ("attribute", "first", "second"),
    [
        ("num_paths", 8, 16),
        ("seed", 0, 1),
        ("num_features", 64, 128),
        ("solver", TIGHT, CG(tolerance=1e-3, preconditioner=Nystrom(2))),
        ("solver", TIGHT, Cholesky()),
        ("solver", Cholesky(), TIGHT),
        ("solver", TIGHT, None),
        ("solver", None, SDD(tolerance=1e-3, max_epochs=2000)),
    ],
)
def test_after_a_change_of_settings_the_posterior_is_that_of_a_fresh_model(
    attribute: str, first: Any, second: Any
) -> None:
    model = MODELS["paths"](**{attribute: first})
    before = law(model)
    setattr(model, attribute, second)
    assert distance(law(model), before) > 1e-4
    assert_same_law(
        model,
        MODELS["paths"](**{attribute: second}),
        rtol=1e-5,
        atol=0.1 if isinstance(second, CG | SDD) else 1e-6,
    )
    setattr(model, attribute, first)
    torch.testing.assert_close(law(model), before, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore::surrogates.UnsolvedWarning")  # float32 falls short of 1e-10
@pytest.mark.parametrize("kind", MODELS)
def test_a_change_of_dtype_changes_the_posterior_with_it(kind: str) -> None:
    model = MODELS[kind](input_transform=Normalize(D, bounds=BOUNDS))
    before = law(model)[0]
    model.float()
    after = law(model, Z.float())[0]
    assert after.dtype == torch.float32
    torch.testing.assert_close(after.double(), before, rtol=0, atol=2e-2)
    model.train()
    assert model.train_inputs[0].dtype == torch.float32
    torch.testing.assert_close(law(model.double())[0], before, rtol=0, atol=2e-2)


@pytest.mark.parametrize("kind", ["paths", "exact"])
def test_inputs_are_set_in_the_users_units_in_every_mode(kind: str) -> None:
    model = MODELS[kind](input_transform=Normalize(D, bounds=BOUNDS))
    law(model)
    new = 0.5 * X
    model.set_train_data(new, model.train_targets)  # in evaluation mode
    transform = Normalize(D, bounds=BOUNDS)
    fresh = PathwiseGP(new, Y, solver=model.solver, **settings(**FEW, input_transform=transform))
    assert_same_law(model, fresh, rtol=1e-6, atol=1e-6)
    model.train()
    assert torch.equal(model.train_inputs[0], new)
    assert_same_law(model, fresh, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["paths", "exact"])
def test_a_changed_input_transform_transforms_the_data_anew(kind: str) -> None:
    def warp() -> Warp:
        return Warp(d=D, indices=[0, 1], batch_shape=torch.Size([]))

    model, fresh = (MODELS[kind](input_transform=warp()) for _ in range(2))
    before = law(model)
    for each in (model, fresh):
        each.input_transform.concentration0.data.fill_(2.5)
    assert distance(law(model), before) > 1e-3
    assert_same_law(model, fresh, rtol=1e-6, atol=1e-6)


def test_an_unchanged_exact_model_is_factorised_once() -> None:
    model = MODELS["exact"]()
    model.posterior(Z)
    kept = model.prediction_strategy
    model.eval()
    model.posterior(Z[0])
    assert model.prediction_strategy is kept


EXACT = {"rtol": 1e-8, "atol": 1e-8}


def test_gradients_reach_the_hyperparameters_of_an_exact_model() -> None:
    gradients = []
    for model in (PathwiseGP(X, Y, solver=Cholesky()), SingleTaskGP(X, Y)):
        with gpytorch.settings.detach_test_caches(False):
            model.eval()
            value = model(Z).mean.sum() + model(Z).variance.sum()
        gradients.append(torch.autograd.grad(value, list(model.parameters()), allow_unused=True))
    torch.testing.assert_close(*gradients, **EXACT)


def test_a_model_without_a_solver_is_exact_up_to_a_number_of_points() -> None:
    torch.testing.assert_close(law(PathwiseGP(X, Y, solver=Cholesky())), law(PathwiseGP(X, Y)))
    inputs = problems.uniform(EXACT_UP_TO + 1, D)
    for n, solver, shape in (
        (EXACT_UP_TO, None, (3, 4)),
        (EXACT_UP_TO + 1, None, (3, 16)),
        (EXACT_UP_TO + 1, Cholesky(), (3, 4)),
    ):
        model = PathwiseGP(inputs[:n], inputs[:n].sum(1, keepdim=True), num_paths=16, solver=solver)
        assert model.posterior(Z).base_sample_shape == shape
    assert PathwiseGP(X, Y, num_paths=16, solver=Auto()).posterior(Z).base_sample_shape == (3, 16)


def test_an_exact_posterior_that_does_not_fit_is_refused_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("surrogates.memory.available", lambda device: 1000)
    with pytest.raises(
        MemoryError,
        match=r"The exact posterior of 60 points needs .* Use an iterative solver such as CG\(\).",
    ):
        PathwiseGP(X, Y, solver=Cholesky()).posterior(Z)


@pytest.mark.parametrize("kind", MODELS)
def test_the_prior_is_that_of_single_task_gp(kind: str) -> None:
    model = MODELS[kind]()
    exact = SingleTaskGP(X, Y, **{k: v for k, v in settings().items() if not k.startswith("num_")})
    for each in (model, exact):
        each.eval()
    with gpytorch.settings.prior_mode(True), torch.no_grad():
        ours = model(Z)
        theirs = exact(Z)
    torch.testing.assert_close(ours.mean, theirs.mean)
    torch.testing.assert_close(ours.covariance_matrix, theirs.covariance_matrix)
    for each in (model, exact):
        each.train()
    with torch.no_grad():
        torch.testing.assert_close(model(X).covariance_matrix, exact(X).covariance_matrix)


@pytest.mark.parametrize("kind", ["exact", "paths"])
def test_what_is_first_computed_in_inference_mode_has_gradients_afterwards(kind: str) -> None:
    model = MODELS[kind]()
    with torch.inference_mode():
        model.posterior(Z)
        paths = model.paths(2)
        larger = model.condition_on_observations(Z[0], Y[:4])
    points = Z.clone().requires_grad_()
    value = model.posterior(points).variance.sum() + paths(points).sum()
    value = value + larger.posterior(points).mean.sum()
    (slope,) = torch.autograd.grad(value, points)
    assert bool(slope.isfinite().all()) and bool((slope != 0).any())
