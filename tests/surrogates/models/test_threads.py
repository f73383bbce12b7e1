"""What a model keeps is built once, whichever of several threads asks for it first."""

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gpytorch
import pytest
import torch
from botorch.models.transforms import Normalize
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import RBFKernel
from torch import Tensor

from surrogates import CG, FiniteFeatureGP, FourierFeatures, GPRegressor, PathwiseGP, VariationalGP
from surrogates.models.fresh import direct_algebra
from surrogates.models.posterior import constant
from tests import problems

THREADS = 8
TRIES = 5
N = 24
X = 2.0 + 3.0 * problems.uniform(N, 2)
Y = 5.0 + torch.sin(3.0 * X.sum(1, keepdim=True))
Z = 2.0 + 3.0 * problems.uniform(4, 2, seed=1)
SMALL: dict[str, Any] = {"num_paths": 4, "num_features": 8}


def transform() -> Normalize:
    return Normalize(2)  # whose bounds are learnt from the data


MODELS: dict[str, Callable[[], PathwiseGP]] = {
    "exact": lambda: PathwiseGP(X, Y, input_transform=transform()),
    "paths": lambda: PathwiseGP(X, Y, solver=CG(), input_transform=transform(), **SMALL),
    "two outputs": lambda: PathwiseGP(
        X, torch.cat([Y, -Y], 1), solver=CG(), input_transform=transform(), **SMALL
    ),
    "variational": lambda: VariationalGP(
        X, Y, inducing_points=8, input_transform=transform(), **SMALL
    ),
    "features": lambda: FiniteFeatureGP(
        X, Y, feature_map=FourierFeatures(RBFKernel(), 2, 8), input_transform=transform()
    ),
}


@pytest.fixture(autouse=True)
def eager_threads() -> Iterator[None]:
    """Let threads take turns after every few operations. GPyTorch's own settings, which all
    threads share, may then be left changed.
    """
    interval = sys.getswitchinterval()
    flags = [flag for flag in vars(gpytorch.settings).values() if hasattr(flag, "_state")]
    states = [flag._state for flag in flags]
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    for flag, state in zip(flags, states, strict=True):
        flag._state = state


def at_once(work: Callable[[], Any]) -> list[Any]:
    barrier = threading.Barrier(THREADS)

    def started() -> Any:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(THREADS) as pool:
        return [done.result() for done in [pool.submit(started) for _ in range(THREADS)]]


def law(model: Any) -> Tensor:
    with torch.no_grad():
        posterior = model.posterior(Z.to(model.train_targets))
        return torch.stack([posterior.mean, posterior.variance])


def check(made: Callable[[], Any], evaluated: Callable[[Any], Tensor]) -> None:
    expected = evaluated(made())
    for _ in range(TRIES):
        model = made()
        for found in (*at_once(lambda model=model: evaluated(model)), evaluated(model)):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_used_first_by_several_threads_is_that_used_by_one(kind: str) -> None:
    made = MODELS[kind]
    state = made().eval().state_dict()
    check(made, law)

    def loaded() -> PathwiseGP:
        model = made()
        law(model)
        model.load_state_dict(state)
        return model

    check(loaded, law)


def test_parameters_are_not_exchanged_while_a_model_is_built() -> None:
    model = MODELS["exact"]()
    before = [*model.parameters()]
    entered = threading.Event()

    def exchange() -> None:
        with constant(model):
            entered.set()

    with model._building:
        thread = threading.Thread(target=exchange)
        thread.start()
        assert not entered.wait(0.1)
        assert all(now is then for now, then in zip(model.parameters(), before, strict=True))
    thread.join()
    assert entered.is_set()


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_can_be_built_while_graphs_are_kept(kind: str) -> None:
    expected = law(MODELS[kind]())
    with gpytorch.settings.detach_test_caches(False):
        model = MODELS[kind]()
    torch.testing.assert_close(law(model), expected)


def test_a_stored_model_and_a_regressor_serve_several_threads_at_once(tmp_path: Path) -> None:
    MODELS["paths"]().save(tmp_path / "model")
    check(lambda: PathwiseGP.load(tmp_path / "model", solver=CG()), law)
    points = Z.numpy()

    def regressor() -> GPRegressor:
        return GPRegressor(optimize=False).fit(X.numpy(), Y[:, 0].numpy())

    check(regressor, lambda model: torch.from_numpy(model.predict(points, return_std=True)[1]))


def test_several_threads_may_fantasise_from_a_fresh_model() -> None:
    def imagined(model: Any) -> Tensor:
        sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
        fantasies = model.fantasize(Z[:1], sampler)
        return fantasies.posterior(Z).mean.detach()

    check(MODELS["paths"], imagined)


def test_settings_of_all_threads_are_restored_by_the_last_to_leave() -> None:
    size = gpytorch.settings.max_cholesky_size.value()
    model = MODELS["exact"]()
    at_once(lambda: [law(model) for _ in range(5)])
    assert gpytorch.settings.max_cholesky_size.value() == size
    with direct_algebra():
        law(model)  # which leaves it, too
        assert gpytorch.settings.max_cholesky_size.value() == sys.maxsize
    assert gpytorch.settings.max_cholesky_size.value() == size
