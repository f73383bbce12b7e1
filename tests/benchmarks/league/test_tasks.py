"""Every task has a space, values, and an optimum below all of them where it is known."""

from pathlib import Path

import pytest
import torch

from benchmarks.league import tasks
from benchmarks.league.subsets import NIGHT, SUBSETS
from benchmarks.league.tasks import FAILING, FRONTS, hypervolume, make_task, missing_package
from benchmarks.league.tuning import TUNING_TASKS
from scalable_bo.experiments.problems import test_function as make_function
from scalable_bo.space.space import Categorical, Float, Int
from scalable_bo.study.design import Design

NAMES = (
    *("branin-2", "hartmann-6", "mixed-hartmann-6"),
    *("bbob-f15-d5", "bbob-mixint-f3-d5", "bbob-largescale-f8-d20"),
)


@pytest.mark.parametrize("name", NAMES)
def test_no_value_is_below_the_optimum(name: str) -> None:
    if missing_package(name):
        pytest.skip("COCO is not installed")
    task = make_task(name)
    sample = task.sample()
    assert sample.shape == (1024,)
    assert task.optimum is not None
    assert float(sample.min()) >= task.optimum
    assert float(sample.max()) > float(sample.min())


@pytest.mark.parametrize("name", FRONTS)
def test_no_front_dominates_more_than_the_largest_known_hypervolume(name: str) -> None:
    task = make_task(name)
    X = Design(task.space, 0).draw(2000, 0, set())[0]
    values = task.evaluate(X)
    assert values.shape == (2000, task.num_objectives)
    assert task.optimum is not None
    assert task.optimum < task.loss(values) < task.loss(values[:20]) <= 0.0
    assert task.spread(None) == -task.optimum


def test_a_hypervolume_is_the_area_between_front_and_reference() -> None:
    Y = torch.tensor([[1.0, 3.0], [2.0, 1.0], [3.0, 3.0], [9.0, 0.0]], dtype=torch.float64)
    assert hypervolume(Y, torch.tensor([4.0, 4.0]).double()) == pytest.approx(3 * 1 + 2 * 2)
    assert hypervolume(Y[3:], torch.tensor([4.0, 4.0]).double()) == 0.0


def test_a_valley_has_the_condition_of_its_name_and_turned_axes() -> None:
    task = make_task("valley-4-1e3", seed=2)
    x = torch.zeros(4, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(lambda x: task.evaluate(x[None])[0], x)
    eigenvalues = torch.linalg.eigvalsh(torch.as_tensor(hessian))
    assert float(eigenvalues[-1] / eigenvalues[0]) == pytest.approx(1e3)
    assert (
        float((torch.as_tensor(hessian) - torch.as_tensor(hessian).diag().diag()).abs().max()) > 1
    )
    assert float(task.evaluate(x[None])) != float(make_task("valley-4-1e3", 3).evaluate(x[None]))
    assert task.optimum == 0.0


@pytest.mark.parametrize("name", FAILING)
def test_a_region_that_fails_is_a_twentieth_to_a_half_of_the_space(name: str) -> None:
    task = make_task(name)
    X = torch.rand(4000, task.space.dim, generator=torch.Generator().manual_seed(1)).double()
    values = task.evaluate(X)
    assert 0.04 < float(values.isnan().double().mean()) < 0.53
    sample = task.sample()
    assert sample is not None and bool(sample.isfinite().all())
    assert task.optimum is not None and float(sample.min()) > task.optimum - 0.1


@pytest.mark.parametrize("suite", ["bbob", "bbob-mixint", "bbob-largescale"])
def test_the_optimum_of_coco_is_reached_at_its_best_point(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cocoex = pytest.importorskip("cocoex")
    monkeypatch.chdir(tmp_path)  # where COCO writes the point
    dim = 20 if suite == "bbob-largescale" else 5
    problems = cocoex.Suite(suite, "instances: 3", f"dimensions: {dim}")
    for function in range(1, 25):
        problem = problems.get_problem_by_function_dimension_instance(function, dim, 3)
        problem._best_parameter("print")
        text = (tmp_path / "._bbob_problem_best_parameter.txt").read_text()
        best = torch.tensor([[float(word) for word in text.split()]], dtype=torch.float64)
        task = make_task(f"{suite}-f{function}-d{dim}", seed=2)
        assert float(task.evaluate(best)) == pytest.approx(task.optimum, rel=1e-6)


def test_a_seed_is_an_instance_of_coco() -> None:
    pytest.importorskip("cocoex")
    optima = {make_task("bbob-f1-d2", seed).optimum for seed in range(3)}
    assert len(optima) == 3


def test_mixed_spaces_hold_integers() -> None:
    pytest.importorskip("cocoex")
    params = make_task("bbob-mixint-f3-d10").space.params.values()
    assert sum(isinstance(param, Int) for param in params) == 8
    assert sum(isinstance(param, Float) for param in params) == 2


@pytest.mark.parametrize(
    ("name", "num_integers"),
    [("hartmann-6", 2), ("ackley-5", 1), ("rosenbrock-4", 1), ("branin-2", 0)],
)
def test_a_mixed_test_function_has_its_optimum_among_its_choices(
    name: str, num_integers: int
) -> None:
    task = make_task(f"mixed-{name}")
    kinds = [type(param) for param in task.space.params.values()]
    num_floats = len(kinds) - 1 - num_integers
    assert kinds == [Categorical, *[Int] * num_integers, *[Float] * num_floats]
    function, dim = name.split("-")
    optimizers = make_function(function, int(dim)).optimizers
    levels = torch.cartesian_prod(torch.arange(5), *[torch.arange(10)] * num_integers).double()
    reals = optimizers[0, 1 + num_integers :].expand(len(levels), -1)
    values = task.evaluate(torch.cat([levels.reshape(len(levels), -1), reals], dim=1))
    assert float(values.min()) == pytest.approx(task.optimum, abs=1e-3)
    assert (values > task.optimum + 1e-3).any()


@pytest.mark.parametrize("name", TUNING_TASKS)
def test_a_tuning_task_is_mixed_and_repeats(name: str) -> None:
    task = make_task(name)
    assert {type(param) for param in task.space.params.values()} == {Float, Int, Categorical}
    X = task.space.unnormalize(torch.full((1, task.space.encoded_dim), 0.5))
    assert float(task.evaluate(X)) == float(task.evaluate(X))
    assert task.sample() is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hartmann", "`problem` must be a test function and its dimension, .* got 'hartmann'"),
        ("tune-iris", "`problem` must be one of tune-digits, .*, got 'tune-iris'"),
        ("mixed-michalewicz-3", "`problem` must be a function whose optimum is known"),
        ("nothing-3", "`name` must be one of Ackley, .*, got 'nothing'"),
    ],
)
def test_an_unknown_task_is_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(name)


def test_a_function_that_coco_does_not_have_is_refused() -> None:
    pytest.importorskip("cocoex")
    with pytest.raises(ValueError, match="`problem` must be .* of COCO's bbob, got f25 and d5"):
        make_task("bbob-f25-d5")


def test_coco_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "is_installed", lambda module: False)
    assert missing_package("bbob-f1-d2") == "coco-experiment"
    assert missing_package("branin-2") is None


def test_all_problems_of_all_subsets_exist() -> None:
    pytest.importorskip("cocoex")
    assert set(NIGHT) <= set(SUBSETS)
    for subset in SUBSETS.values():
        for problem in subset.axes["problem"]:
            make_task(problem)
