"""Everything runs on a device that is not the CPU, with the results that the CPU gives:
on a simulated one, wherever the tests run.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import (
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)
from torch import Tensor

import surrogates as sg
from acquisition import (
    FeasibleSet,
    ParallelThompsonSampling,
    PathwiseMaxPosteriorSampling,
    PathwiseThompsonSampling,
)
from scalable_bo import Float, Space, Study
from scalable_bo.experiments.cells import run_cell
from scalable_bo.experiments.presets import THOMPSON_PRESETS
from scalable_bo.experiments.thompson.cell import ThompsonCell
from tests import problems
from tests.simulated_device import NAME, counting_waits

LIGHT = partial(
    ParallelThompsonSampling, num_candidates=16, num_rounds=2, num_starts=2, num_steps=2
)
D = 3
BOUNDS = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.float64)


def data(n: int = 60) -> tuple[Tensor, Tensor]:
    generator = problems.seeded()
    X = torch.rand(n, D, generator=generator, dtype=torch.float64)
    return X, torch.sin(5 * X.sum(1, keepdim=True)) + 0.05 * torch.randn(
        n, 1, generator=generator, dtype=torch.float64
    )


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


class TestSimulatedDevice:
    @pytest.mark.parametrize(
        "mix",
        [
            lambda there: there + torch.ones(2, 2),
            lambda there: there @ torch.ones(2, 2),
            lambda there: torch.cat([there, torch.ones(2, 2)]),
            lambda there: torch.where(there > 0, there, torch.ones(2, 2)),
            lambda there: there.index_select(0, torch.tensor([0])),
            lambda there: torch.ones(2, 2).index_add_(0, torch.tensor([0, 1]), there),
            lambda there: torch.mm(there, there, out=torch.empty(2, 2)),
            lambda there: there[torch.tensor([0.0, 1.0])],
        ],
    )
    def test_a_tensor_of_the_cpu_is_refused(
        self, device: torch.device, mix: Callable[[Tensor], Any]
    ) -> None:
        with pytest.raises((RuntimeError, IndexError)):
            mix(torch.ones(2, 2, device=device))

    def test_what_a_device_takes_from_the_cpu_is_taken(self, device: torch.device) -> None:
        there = torch.ones(2, 2, device=device)
        there[torch.tensor([0])] = 2.0
        there[1:] = torch.full((1, 2), 3.0)
        assert (there * torch.tensor(2.0)).tolist() == [[4.0, 4.0], [6.0, 6.0]]

    def test_a_generator_of_the_cpu_cannot_draw_there(self, device: torch.device) -> None:
        with pytest.raises(RuntimeError, match="generator"):
            torch.randn(2, generator=seeded(), device=device)

    def test_an_array_needs_a_move(self, device: torch.device) -> None:
        with pytest.raises(TypeError, match="cpu"):
            np.asarray(torch.ones(2, device=device))

    def test_gradients_stay_there(self, device: torch.device) -> None:
        layer = torch.nn.Linear(2, 1).to(device)
        layer(torch.ones(3, 2, device=device)).sum().backward()
        assert layer.weight.grad.device == device
        assert layer.weight.grad.tolist() == [[3.0, 3.0]]


KERNELS: dict[str, Callable[[], Kernel]] = {
    "matern12": lambda: MaternKernel(nu=0.5),
    "matern52-ard": lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=D)),
    "rational-quadratic": RQKernel,
    "periodic": PeriodicKernel,
    "sum": lambda: ScaleKernel(LinearKernel()) + RBFKernel(),
    "product": lambda: RBFKernel() * MaternKernel(nu=1.5),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_posterior_and_paths_of_any_kernel_are_those_on_the_cpu(
    name: str, device: torch.device
) -> None:
    X, y = data()
    moments = []
    for there in ("cpu", device):
        model = sg.PathwiseGP(
            X.to(there),
            y.to(there),
            covar_module=KERNELS[name]().double().to(there),
            num_features=64,
            num_paths=16,
        )
        points = X[:5].to(there).requires_grad_()
        posterior = model.posterior(points)
        paths = model.paths(4, generator=seeded())(points)
        (gradient,) = torch.autograd.grad(paths.sum(), points)
        assert posterior.mean.device.type == torch.device(there).type
        moments.append(
            [part.detach().cpu() for part in (posterior.mean, posterior.variance, paths, gradient)]
        )
    for on_cpu, on_device in zip(*moments, strict=True):
        torch.testing.assert_close(on_device, on_cpu, rtol=1e-6, atol=1e-8)


MODELS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "noise of every point": lambda X, y: sg.PathwiseGP(X, y, torch.full_like(y, 0.01)),
    "inducing": lambda X, y: sg.InducingPathwiseGP(X, y, inducing_points=20),
    "variational": lambda X, y: sg.VariationalGP(X, y, inducing_points=20),
    "finite": lambda X, y: sg.FiniteFeatureGP(
        X, y, feature_map=sg.FourierFeatures(MaternKernel(nu=1.5).to(X), D, 32)
    ),
    "conditioned": (
        lambda X, y: evaluated(sg.PathwiseGP(X, y)).condition_on_observations(X[:4] + 0.01, y[:4])
    ),
    "fantasies": (
        lambda X, y: evaluated(sg.PathwiseGP(X, y)).fantasize(
            X[:2], SobolQMCNormalSampler(torch.Size([3]), seed=0)
        )
    ),
}


def evaluated(model: SingleTaskGP) -> Any:
    model.posterior(model.train_inputs[0][:1])
    return model


@pytest.mark.parametrize("name", MODELS)
def test_every_model_predicts_there(name: str, device: torch.device) -> None:
    X, y = (part.to(device) for part in data())
    posterior = MODELS[name](X, y).posterior(X[:5])
    samples = posterior.rsample(torch.Size([2]))
    assert posterior.mean.device == posterior.variance.device == samples.device == device
    assert all(part.isfinite().all() for part in (posterior.mean, posterior.variance, samples))


FITS: dict[str, Callable[[sg.PathwiseGP], Any]] = {
    "exact": lambda model: sg.fit_exact(model, optimizer_kwargs={"options": {"maxiter": 5}}),
    "subsets": lambda model: sg.fit_subsets(model, num_subsets=2, subset_size=20, num_steps=5),
    "minibatch": lambda model: sg.fit_minibatch(model, max_epochs=2),
    "iterative": lambda model: sg.fit_iterative(model, num_steps=3),
    "pathwise probes": lambda model: sg.fit_iterative(model, num_steps=2, probes="pathwise"),
}


@pytest.mark.parametrize("name", FITS)
def test_every_fit_runs_there(name: str, device: torch.device) -> None:
    X, y = data()
    models = [sg.PathwiseGP(X.to(there), y.to(there)) for there in ("cpu", device)]
    before = models[0].likelihood.noise.item()
    on_cpu, on_device = (FITS[name](model).likelihood.noise for model in models)
    assert on_device.device == device
    assert on_cpu.item() != before
    torch.testing.assert_close(on_device.cpu(), on_cpu, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", [sg.SCGD(), sg.Minimax()], ids=["scgd", "minimax"])
def test_finite_features_are_fitted_there(method: Any, device: torch.device) -> None:
    X, y = (part.to(device) for part in data())
    model = MODELS["finite"](X, y)
    before = model.likelihood.noise.item()
    fitted = sg.fit_finite_features(
        model, method=method, num_steps=3, batch_size=20, generator=seeded()
    )
    assert fitted.likelihood.noise.item() != before
    assert fitted.posterior(X[:2]).mean.device == device


CONSTRAINTS: dict[str, dict[str, Any]] = {
    "none": {},
    "inequality": {"inequality_constraints": [(torch.tensor([0, 1]), torch.ones(2).double(), 0.5)]},
    "equality": {"equality_constraints": [(torch.tensor([0, 1]), torch.ones(2).double(), 0.9)]},
    "nonlinear": {"nonlinear_inequality_constraints": [lambda x: 0.8 - x.square().sum()]},
    "fixed": {"fixed_features": {0: 0.5}},
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_thompson_sampling_acquires_there(name: str, device: torch.device) -> None:
    X, y = (part.to(device) for part in data())
    sampler = ParallelThompsonSampling(
        sg.PathwiseGP(X, y),
        BOUNDS.to(device),
        num_candidates=100,
        num_rounds=4,
        num_starts=2,
        num_steps=5,
        seed=0,
        **CONSTRAINTS[name],
    )
    batch = sampler.generate(2)
    assert batch.device == device
    assert FeasibleSet.of(BOUNDS, **CONSTRAINTS[name]).contains(batch.cpu()).all()


def test_botorch_acquires_there(device: torch.device) -> None:
    X, y = (part.to(device) for part in data())
    model = sg.PathwiseGP(X, y)
    bounds = BOUNDS.to(device)
    for acquisition in (
        PathwiseThompsonSampling(model, seed=0),
        qLogExpectedImprovement(model, best_f=y.max()),
    ):
        points, _ = optimize_acqf(
            acquisition, bounds, q=1, num_restarts=2, raw_samples=8, options={"maxiter": 3}
        )
        assert points.device == device
    assert (
        PathwiseMaxPosteriorSampling(model, seed=0)(X.unsqueeze(0), num_samples=3).device == device
    )


@pytest.mark.parametrize("blocks", ["partition", "leverage", "dpp"])
def test_blocks_of_any_kind_are_drawn_there(blocks: str, device: torch.device) -> None:
    X, y = data()
    values = []
    for there in ("cpu", device):
        system = sg.KernelSystem(
            sg.kernel_operator(MaternKernel(nu=1.5).double().to(there), X.to(there)), 0.01
        )
        solver = sg.SketchAndProject(block_size=20, blocks=blocks, max_epochs=3.0)
        values.append(solver.solve(system, y.to(there), generator=seeded()).value.cpu())
    torch.testing.assert_close(*values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("solver", "most"),
    [
        (sg.SDD(), 0.1),  # to know whether a column has ended, where a window ends
        (sg.SGD(), 0.1),
        # In every step, and whether a factorisation succeeded
        (sg.SketchAndProject.asap(block_size=20), 2),
        (
            sg.SketchAndProject.adasap(
                preconditioner=sg.Nystrom(5, sketch="gaussian"), block_size=20
            ),
            3,
        ),
    ],
    ids=["sdd", "sgd", "asap", "adasap"],
)
def test_a_step_seldom_waits_for_the_device(
    solver: sg.IterativeSolver, most: float, device: torch.device
) -> None:
    X, y = (part.to(device) for part in data())
    waits = []
    steps = []
    for max_epochs in (10.0, 20.0):
        system = sg.KernelSystem(
            sg.kernel_operator(MaternKernel(nu=1.5).double().to(device), X), 0.01
        )
        with counting_waits() as count:
            solution = replace(solver, tolerance=1e-14, max_epochs=max_epochs).solve(
                system, y, generator=seeded()
            )
        waits.append(len(count))
        steps.append(int(solution.steps.max()))
    assert steps[1] > steps[0]
    assert waits[1] - waits[0] <= most * (steps[1] - steps[0])


@pytest.mark.parametrize("method", ["k-means", "random", "neighbours"])
def test_inducing_points_are_chosen_there(method: str, device: torch.device) -> None:
    X, _ = data()
    chosen = [
        sg.choose_inducing_points(X.to(there), 10, method, generator=seeded(), lengthscale=0.3)
        for there in ("cpu", device)
    ]
    assert chosen[1].device == device
    torch.testing.assert_close(chosen[1].cpu(), chosen[0])


def test_neighbours_predict_there(device: torch.device) -> None:
    X, y = (part.to(device) for part in data())
    mean, variance = sg.predict_by_neighbours(sg.PathwiseGP(X, y), X[:5], num_neighbours=10)
    assert mean.device == variance.device == device


@pytest.mark.parametrize("solver", ["cholesky", "sdd", "auto", "svgp"])
def test_the_benchmark_runs_there(solver: str, device: torch.device) -> None:
    preset = replace(
        THOMPSON_PRESETS["smoke"],
        name="tiny",
        num_initial=60,
        q=6,
        dim=2,
        num_candidates=200,
        num_screenings=3,
        num_starts=2,
        num_ascent_steps=5,
    )
    record = run_cell(ThompsonCell(preset, solver, 0.5, 0, device=NAME))
    assert record["environment"]["device"] == NAME
    assert record["rounds"][-1]["best_noiseless"] >= record["initial"]["best_noiseless"]


def test_a_study_computes_there(device: torch.device) -> None:
    space = Space(a=Float(0.0, 1.0), b=Float(0.0, 1.0))
    study = Study(space, maximize=True, seed=0, device=device, sampler=LIGHT)
    for q in (6, 3):
        batch = study.ask(q)
        study.tell(
            batch.ids, [-((params["a"] - 0.3) ** 2) - params["b"] for params in batch.params]
        )
    assert study.model.train_inputs[0].device == device
    assert study.best_value > -0.1


class TestDefaultDevice:
    """Tensors are made on the device of the data, whatever PyTorch's default device is."""

    @pytest.mark.parametrize(
        "model",
        [
            lambda X, Y: sg.PathwiseGP(X, Y),
            lambda X, Y: sg.PathwiseGP(X.float(), Y.float()),
            lambda X, Y: sg.PathwiseGP(X, Y, solver=sg.CG(), num_paths=8, num_features=16),
            lambda X, Y: sg.InducingPathwiseGP(X, Y, inducing_points=8, num_paths=8),
            lambda X, Y: sg.VariationalGP(X, Y, inducing_points=8, num_paths=8),
        ],
        ids=["exact", "single precision", "paths", "inducing", "variational"],
    )
    @pytest.mark.parametrize("default", [NAME, "meta"])
    def test_posteriors_and_paths(
        self, device: torch.device, model: Callable[..., Any], default: str
    ) -> None:
        X, Y = data(20)

        def found(model: Any) -> list[Tensor]:
            points = X[:3].to(model.train_targets)
            values = torch.full_like(points[:, :1], 0.5)
            more = model.condition_on_observations(points, values, torch.full_like(values, 0.1))
            law = more.posterior(points.requires_grad_())
            (slope,) = torch.autograd.grad(law.variance.sum(), points)
            return [law.mean.detach(), slope, model.paths(2, generator=seeded())(points).detach()]

        expected = found(model(X, Y))
        built = model(X, Y)
        with torch.device(default):
            torch.testing.assert_close(found(built), expected)

    def test_fits_and_thompson_samples(self, device: torch.device) -> None:
        X, Y = data(20)

        def found() -> list[Tensor]:
            model = sg.PathwiseGP(X, Y, num_paths=8, num_features=16)
            sg.fit(model)
            sampler = LIGHT(model, BOUNDS, seed=0)
            regressor = sg.NystromSGM(random_state=0).fit(X.numpy(), Y[:, 0].numpy())
            return [
                model.covar_module.lengthscale.detach(),
                sampler.generate(2),
                torch.from_numpy(regressor.predict(X.numpy())),
            ]

        expected = found()
        with device:
            torch.testing.assert_close(found(), expected)

    @pytest.mark.parametrize("strategy", [pytest.param("auto", marks=pytest.mark.slow), "thompson"])
    def test_studies(self, device: torch.device, strategy: str) -> None:
        def asked() -> list[Any]:
            space = Space(x=Float(0, 1), y=Float(1, 2))
            study = Study(space, maximize=True, strategy=strategy, sampler=LIGHT, num_initial=4)
            batch = study.ask(4)
            study.tell(batch, [params["x"] * params["y"] for params in batch.params])
            return study.ask(2).params

        expected = asked()
        with device:
            assert asked() == expected
