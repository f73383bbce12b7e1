"""The Thompson-sampling benchmark: its records, its random streams, its summary and its plot."""

import math
from dataclasses import asdict, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

from acquisition import ParallelThompsonSampling
from scalable_bo.experiments.cells import run_cell
from scalable_bo.experiments.formats import mean_and_error
from scalable_bo.experiments.markdown_tables import THOMPSON, write_markdown
from scalable_bo.experiments.models import coordinate_kernel, matern_kernel
from scalable_bo.experiments.plots import plot_thompson
from scalable_bo.experiments.presets import THOMPSON_PRESETS as PRESETS
from scalable_bo.experiments.presets import ThompsonPreset, find_preset, vary
from scalable_bo.experiments.records import write_record
from scalable_bo.experiments.solvers import CGBudget, SDDBudget, name_of, solver_for
from scalable_bo.experiments.thompson.cell import ThompsonCell, published_weights
from scalable_bo.experiments.thompson.table import summarise, thompson_table
from surrogates import (
    CG,
    SDD,
    Auto,
    Cholesky,
    Nystrom,
    PivotedCholesky,
    RandomFeatures,
    SamplePaths,
    Solution,
    Solver,
)
from surrogates.solvers.registry import SOLVERS
from tests.refusals import assert_refused

TINY = replace(PRESETS["smoke"], name="tiny", num_initial=60, q=6, dim=2, num_candidates=200)
ROUND_KEYS = {
    "best_noiseless",
    "best_observed",
    "residual",
    "epochs",
    "seconds_solve",
    "seconds_acquisition",
    "peak_memory_bytes",
}


def run(solver: str | Solver = "cholesky", seed: int = 0, **changes: Any) -> dict[str, Any]:
    return run_cell(ThompsonCell(replace(TINY, **changes), solver, 0.5, seed))


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return run()


def test_every_lengthscale_has_a_name_of_its_own_and_short_ones_are_six_digits() -> None:
    def name(lengthscale: float) -> str:
        return ThompsonCell(TINY, "cg", lengthscale, 0).name

    for lengthscale, digits in ((0.5, "0.5"), (2.0, "2"), (1e-5, "1e-05"), (123456.0, "123456")):
        assert name(lengthscale) == f"thompson_tiny_cg_l{digits}_s0"
    neighbours = (0.5, 0.5000001, math.nextafter(0.5, 1.0), 1 / 3, 0.333333)
    assert len({name(lengthscale) for lengthscale in neighbours}) == len(neighbours)


def test_a_record_has_settings_environment_and_every_key_of_every_round(
    record: dict[str, Any],
) -> None:
    assert record["experiment"] == "thompson"
    assert record["complete"]
    assert record["settings"]["preset"]["noise"] == 1e-6
    assert (
        record["settings"]["solver"],
        record["settings"]["lengthscale"],
        record["settings"]["seed"],
    ) == ("cholesky", 0.5, 0)
    assert {"commit", "versions", "device", "cpu", "date"} <= set(record["environment"])
    assert len(record["rounds"]) == len(record["random_search"]["rounds"]) == TINY.num_rounds
    for number, entry in enumerate(record["rounds"], start=1):
        assert set(entry) >= ROUND_KEYS
        assert entry["num_points"] == TINY.num_initial + number * TINY.q
        assert entry["peak_memory_bytes"] > 10**7
        assert 0 <= entry["residual"] < 1e-2
        assert entry["seconds_solve"] > 0
        assert entry["seconds_acquisition"] > 0


def test_best_values_never_fall_and_the_observed_differ_by_the_noise(
    record: dict[str, Any],
) -> None:
    for rounds in (record["rounds"], record["random_search"]["rounds"]):
        for key in ("best_noiseless", "best_observed"):
            values = [record["initial"][key], *(entry[key] for entry in rounds)]
            assert values == sorted(values)
        for entry in rounds:
            # Six standard deviations
            assert 0 < abs(entry["best_observed"] - entry["best_noiseless"]) < 6e-3


def test_thompson_sampling_beats_random_search() -> None:
    records = [run_cell(ThompsonCell(PRESETS["smoke"], "cholesky", 0.3, seed)) for seed in range(2)]
    (summary,) = summarise(records)
    assert summary.num_seeds == 2
    assert summary.improvement[0] > 10
    assert all(
        r["rounds"][-1]["best_noiseless"] >= r["random_search"]["rounds"][-1]["best_noiseless"]
        for r in records
    )


def test_every_solver_meets_the_same_target_data_and_random_search(record: dict[str, Any]) -> None:
    other = run("cg")
    assert other["initial"] == record["initial"]
    assert other["random_search"] == record["random_search"]
    assert run(seed=1)["initial"] != record["initial"]


@pytest.mark.parametrize(
    "solver", ["tests.surrogates.solvers.toy_solver:ConjugateResiduals", CG(None)]
)
def test_a_solver_from_outside_runs_the_rounds(solver: str | Solver) -> None:
    record = run(solver)
    by_cholesky = run("cholesky")
    assert record["settings"]["solver"] == (solver if isinstance(solver, str) else name_of(solver))
    first = [one["rounds"][0]["best_noiseless"] for one in (record, by_cholesky)]
    assert first[0] == pytest.approx(first[1], abs=1e-3)
    assert name_of(CG(None)) != name_of(CG(None, max_epochs=7.0))


def test_rounds_differ_in_their_candidates_and_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []
    weights = []
    generate = ParallelThompsonSampling.generate

    def spy(self: ParallelThompsonSampling, q: int, *, paths: SamplePaths) -> torch.Tensor:
        seeds.append(self.seed)
        weights.append(paths.prior.draws[0][1])
        return generate(self, q, paths=paths)

    monkeypatch.setattr(ParallelThompsonSampling, "generate", spy)
    run(num_rounds=2)
    assert seeds[0] != seeds[1]
    assert not torch.equal(*weights)


def test_each_round_starts_the_mean_from_the_round_before(monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[torch.Tensor | None] = []
    solve = CG.solve

    def record_start(
        self: CG, system: Any, rhs: torch.Tensor, *, initial: torch.Tensor | None, **options: Any
    ) -> Solution:
        starts.append(initial)
        return solve(self, system, rhs, initial=initial, **options)

    monkeypatch.setattr(CG, "solve", record_start)
    run("cg")
    assert starts[0] is None
    assert starts[1] is not None
    assert starts[1][:, 0].abs().min() > 0
    assert starts[1][:, 1:].eq(0).all()


def test_features_are_shared_only_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    from scalable_bo.experiments.problems import GPPrior

    calls = []
    share = GPPrior.share_features
    monkeypatch.setattr(
        GPPrior, "share_features", lambda *arguments: calls.append(arguments) or share(*arguments)
    )
    run(num_rounds=1)
    assert not calls
    assert run(num_rounds=1, share_features=True)["complete"]
    assert len(calls) == 1


def test_coordinate_features_are_those_of_a_product_of_one_dimensional_kernels(
    generator: torch.Generator,
) -> None:
    kernel = matern_kernel(0.5, 2.0)
    # One lengthscale apart
    X = torch.stack([torch.zeros(8), torch.full((8,), 0.5 / 8**0.5)]).double()
    exact = float(kernel(X).to_dense()[0, 1])
    alone = float(matern_kernel(0.5, 1.0)(X[:, :1]).to_dense()[0, 1])
    product = coordinate_kernel(kernel, 8)
    assert float(product(X).to_dense()[0, 1]) == pytest.approx(2.0 * alone**8)
    features = RandomFeatures.draw(product, 8, 40_000, generator=generator, like=X)(X)
    assert float(features[0] @ features[1]) == pytest.approx(
        2.0 * alone**8, abs=4 * 2.0 / 20_000**0.5
    )
    assert abs(exact - 2.0 * alone**8) > 0.2


def test_published_weights_prefer_the_worst_data_and_are_probabilities() -> None:
    y = torch.tensor([-2.0, -1.0, 0.0, 1.0, 3.0], dtype=torch.float64)
    weights = published_weights(y)
    assert torch.allclose(
        weights, torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0], dtype=torch.float64) / 10
    )
    positive = torch.tensor([1.0, 3.0], dtype=torch.float64)
    assert torch.allclose(
        published_weights(positive), torch.tensor([2.0, 4.0], dtype=torch.float64) / 6
    )


@pytest.mark.parametrize(
    "change", [{"coordinate_features": True}, {"candidate_weights": "published"}]
)
def test_what_differs_from_the_published_codes_can_be_switched(
    record: dict[str, Any], change: dict[str, Any]
) -> None:
    switched = run(num_rounds=1, **change)
    assert switched["settings"]["preset"] | change == switched["settings"]["preset"]
    assert switched["rounds"][0]["best_observed"] != record["rounds"][0]["best_observed"]
    # features change the target; weights change nothing but the candidates
    assert (switched["initial"] == record["initial"]) == ("candidate_weights" in change)


def test_a_scaled_preset_shrinks_the_data_and_keeps_the_passes() -> None:
    small = PRESETS["lin2023-small"]
    scaled = vary(small, scale=0.04, published_weights=True)
    assert scaled.name == "lin2023-small-x0.04-published-weights"
    assert (scaled.scale, scaled.num_initial, scaled.q, scaled.num_candidates) == (
        0.04,
        2000,
        40,
        2000,
    )
    assert (scaled.num_rounds, scaled.target_features, scaled.path_features) == (6, 1000, 400)
    sdd, scaled_sdd = (
        solver_for("sdd", preset.num_initial, preset.cg, preset.sdd) for preset in (small, scaled)
    )
    assert scaled_sdd.max_epochs == sdd.max_epochs  # type: ignore[attr-defined]
    assert vary(small) == small
    assert vary(small, scale=0.04, share_features=True).path_features == 1000
    with pytest.raises(ValueError, match="`scale` must be above 0 and at most 1, got 2.0"):
        vary(small, scale=2.0)


def test_the_search_of_a_preset_can_be_our_own() -> None:
    preset = vary(PRESETS["lin2023-small"], scale=0.04, own_search=True)
    assert preset.name == "lin2023-small-x0.04-own-search"
    defaults = signature(ParallelThompsonSampling).parameters
    for name, argument in (
        ("num_candidates", "num_candidates"),
        ("num_screenings", "num_rounds"),
        ("num_starts", "num_starts"),
        ("num_ascent_steps", "num_steps"),
        ("learning_rate", "learning_rate"),
        ("prune_starts", "prune"),
        ("uniform_fraction", "uniform_fraction"),
    ):
        assert getattr(preset, name) == defaults[argument].default


def test_the_table_stands_beside_the_published_improvement(tmp_path: Path) -> None:
    preset = vary(PRESETS["adasap2025"], scale=0.1)
    for seed in range(2):
        made = fake_record("adasap", seed, [1.0, 3.0], [0.5, 2.0], preset)
        made |= {"experiment": "thompson", "environment": ENVIRONMENT}
        made["settings"]["lengthscale"] = 2.0
        write_record(tmp_path / f"thompson_{seed}.json", made)
    (tmp_path / "thompson_broken.json").write_text("{")
    text = write_markdown(tmp_path, THOMPSON).read_text()
    assert "## adasap2025-x0.1" in text
    assert "scaled by 0.1, so that the published numbers are of a larger problem" in text
    assert (
        "| adasap | 2 | 3.000 ± 0.000 (2) | 2.000 ± 0.000 (2) | 50.00 ± 0.00 (2) | 1.0 | 2.0 |"
        " 10.42 |" in text
    )


@pytest.mark.parametrize(
    "foreign", [{}, {"rounds": 3}, {"rounds": [{}], "settings": "none"}, {"rounds": [{}]}]
)
def test_a_file_that_only_looks_like_a_record_is_named_and_left_out_of_the_table(
    tmp_path: Path, foreign: dict[str, Any]
) -> None:
    own = fake_record("cg", 0, [1.0], [0.5]) | {
        "experiment": "thompson",
        "environment": {"device": "cpu", "cpu": "a processor", "threads": 1},
    }
    write_record(tmp_path / "thompson_own.json", own)
    alone = write_markdown(tmp_path, THOMPSON).read_text()
    path = tmp_path / "thompson_foreign.json"
    write_record(path, {"experiment": "thompson", "complete": True, **foreign})
    with pytest.warns(UserWarning, match=f"{path} lacks what a record of thompson has .*Move it"):
        write_markdown(tmp_path, THOMPSON)
    assert (tmp_path / "thompson.md").read_text() == alone


def test_rounds_are_handed_out_as_they_finish_with_the_state_of_the_work() -> None:
    seen = []
    lines = []
    status = []
    cell = ThompsonCell(TINY, "cg", 0.5, 0)

    def on_round(record: dict[str, Any]) -> None:
        seen.append((record["complete"], len(record["rounds"])))
        lines.append(cell.describe(record))

    run_cell(cell, on_step=on_round, on_status=status.append)
    assert seen == [(False, 1), (True, 2)]
    assert lines[1].startswith("cg lengthscale 0.5 seed 0 round 2/2: n 72, best ")
    assert any("solving" in text and "residual" in text for text in status)
    assert any("screening" in text for text in status)
    assert any("ascent" in text for text in status)


def test_the_published_presets_have_the_published_numbers() -> None:
    small, large, adasap = (
        PRESETS[name] for name in ("lin2023-small", "lin2023-large", "adasap2025")
    )
    assert (small.num_initial, small.num_rounds, small.q, small.num_seeds) == (50_000, 30, 1000, 10)
    assert small.lengthscales == (0.1, 0.2, 0.3, 0.4, 0.5)
    assert (small.cg.num_iterations, large.cg.num_iterations) == (10, 50)
    assert (small.sdd.num_steps, large.sdd.num_steps) == (15_000, 75_000)
    assert (adasap.num_initial, adasap.num_rounds, adasap.lengthscales, adasap.num_seeds) == (
        250_000,
        10,
        (2.0, 3.0),
        5,
    )
    assert (adasap.learning_rate, adasap.target_features, adasap.path_features) == (0.1, 5000, 5000)
    laptop = PRESETS["laptop"]
    assert (laptop.num_initial, laptop.q, laptop.num_rounds, laptop.prune_starts) == (
        5000,
        100,
        5,
        True,
    )
    for preset in (small, large, adasap, laptop):
        assert (preset.dim, preset.smoothness, preset.noise, preset.outputscale) == (
            8,
            1.5,
            1e-6,
            1.0,
        )
        assert preset.uniform_fraction == 0.1
        assert not preset.share_features
    for preset in (small, large, adasap):
        assert (
            preset.num_candidates,
            preset.num_screenings,
            preset.num_starts,
            preset.num_ascent_steps,
        ) == (50_000, 30, 30, 100)
        assert not preset.prune_starts


def test_budgets_become_solvers() -> None:
    small = PRESETS["lin2023-small"]
    adasap = PRESETS["adasap2025"]
    cg = solver_for("cg", 50_000, small.cg, small.sdd)
    assert isinstance(cg, CG)
    assert cg.preconditioner == PivotedCholesky(100)
    assert 12 <= cg.max_epochs < 13
    auto = solver_for("auto", 50_000, small.cg, small.sdd)
    assert isinstance(auto, Auto)
    assert (auto.tolerance, auto.max_epochs) == (None, 12.0)
    assert solver_for("auto", 100, CGBudget(1e-3)).tolerance == 1e-3  # type: ignore[attr-defined]
    sdd = solver_for("sdd", 50_000, small.cg, small.sdd)
    assert isinstance(sdd, SDD)
    assert (sdd.batch_size, sdd.step_size, sdd.max_epochs) == (500, 50.0, 152.0)
    sdd = solver_for("sdd", 250_000, adasap.cg, adasap.sdd)
    assert isinstance(sdd, SDD)
    assert (sdd.batch_size, sdd.step_size, sdd.max_epochs) == (50_000, 1.0, 12.0)
    sdd = solver_for("sdd-10", 250_000, adasap.cg, adasap.sdd)
    assert isinstance(sdd, SDD)
    assert (sdd.batch_size, sdd.step_size, sdd.averaging) == (50_000, 10.0, 10.0 / 50)
    pcg = solver_for("cg", 250_000, adasap.cg, adasap.sdd)
    assert isinstance(pcg, CG)
    # An epoch makes the sketch, and two evaluate a start and the result
    assert (pcg.preconditioner, pcg.max_epochs) == (Nystrom(100, sketch="gaussian"), 13.0)
    assert isinstance(solver_for("cholesky", 100), Cholesky)
    assert solver_for("cg", 100).tolerance is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(("preconditioner", "set_up"), [("nystrom", 0), ("gaussian", 1)])
def test_a_budget_of_iterations_is_what_conjugate_gradients_run(
    preconditioner: str, set_up: int
) -> None:
    budget = CGBudget(1e-7, num_iterations=4, preconditioner=preconditioner, rank=10)
    record = run("cg", cg=budget, num_rounds=1)
    assert 4 < record["rounds"][0]["epochs"] - set_up <= 6.5


def test_a_budget_larger_than_the_data_is_cut_to_them() -> None:
    solver = solver_for("sdd", 100, sdd=SDDBudget(num_steps=10, batch_size=500))
    assert isinstance(solver, SDD)
    assert (solver.batch_size, solver.max_epochs) == (100, 12.0)


def test_bad_settings_are_refused() -> None:
    assert_refused(
        ValueError,
        partial(replace, TINY),
        q=[0],
        noise=[-1e-6],
        lengthscales=[(0.5, math.nan)],
        smoothness=[2.0],
        dtype=["float16"],
    )
    with pytest.raises(ValueError, match="`path_features` must equal `target_features` = 500"):
        replace(TINY, share_features=True, path_features=100)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="`preset` must be one of smoke, laptop, lin2023-small.*got 'desk'"
    ):
        find_preset("desk")
    with pytest.raises(ValueError, match="`lengthscale` must be positive and finite, got 0"):
        ThompsonCell(TINY, "cg", 0.0, 0)
    names = "auto cholesky cg sdd sdd-1 sdd-10 sdd-100 sgd sap asap adasap adasap-i"
    assert set(SOLVERS) == set(names.split())


ENVIRONMENT = {"device": "cpu", "cpu": "a processor", "threads": 1}


def fake_record(
    solver: str,
    seed: int,
    best: list[float],
    random_best: list[float],
    preset: ThompsonPreset = TINY,
) -> dict[str, Any]:
    def entry(value: float) -> dict[str, float]:
        return {
            "best_noiseless": value,
            "residual": 0.01,
            "seconds_solve": 1.0,
            "seconds_acquisition": 2.0,
        }

    return {
        "complete": True,
        "settings": {
            "preset": asdict(preset) | {"num_rounds": len(best)},
            "solver": solver,
            "lengthscale": 0.5,
            "seed": seed,
        },
        "initial": {"best_noiseless": 0.5},
        "rounds": [entry(value) for value in best],
        "random_search": {"rounds": [{"best_noiseless": value} for value in random_best]},
    }


def test_summaries_are_means_and_standard_errors_over_complete_runs() -> None:
    records = [
        fake_record("cg", 0, [1.0, 2.0], [0.5, 1.0]),
        fake_record("cg", 1, [1.0, 4.0], [0.5, -2.0]),
    ]
    unfinished = fake_record("cg", 2, [9.0], [9.0]) | {"complete": False}
    (summary,) = summarise([*records, unfinished])
    assert summary.best_noiseless == pytest.approx((3.0, 1.0))
    assert summary.random_search == pytest.approx((-0.5, 1.5))
    assert summary.improvement == pytest.approx((200.0, 100.0))  # (2 − 1) / 1 and (4 + 2) / 2
    assert (summary.num_seeds, summary.seconds_solve, summary.seconds_acquisition) == (2, 1.0, 2.0)
    assert math.isnan(mean_and_error([1.0])[1])


def test_the_plot_shows_every_solver_and_random_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = []
    from scalable_bo.experiments import plots

    make_canvas = plots.FigureCanvasAgg
    monkeypatch.setattr(
        plots, "FigureCanvasAgg", lambda figure: figures.append(figure) or make_canvas(figure)
    )
    records = [
        fake_record(solver, seed, [1.0, 2.0 + seed], [0.6, 0.7])
        for solver in ("cg", "sdd")
        for seed in (0, 1)
    ]
    path = tmp_path / "made" / "plot.png"
    plot_thompson(records, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    ((left, right),) = [figures[0].axes]
    lines = {line.get_label(): line for line in left.lines}
    assert list(lines) == ["cg (2 seeds)", "sdd (2 seeds)", "random search"]
    assert lines["cg (2 seeds)"].get_ydata() == pytest.approx([0.5, 1.0, 2.5])
    assert lines["random search"].get_ydata() == pytest.approx([0.5, 0.6, 0.7])
    assert right.lines[0].get_xdata() == pytest.approx([0.0, 3.0, 6.0])
    assert left.get_xlabel() == "rounds of 6 points"


def unfinished(record: dict[str, Any], planned: int) -> dict[str, Any]:
    """Return a record of as many rounds, of more that were planned."""
    settings = record["settings"]
    preset = settings["preset"] | {"num_rounds": planned}
    return record | {"complete": False, "settings": settings | {"preset": preset}}


def test_unfinished_runs_are_shown_where_no_other_is_to_the_round_that_all_have(
    tmp_path: Path,
) -> None:
    whole = fake_record("cg", 0, [1.0, 2.0, 3.0], [0.5, 0.6, 0.7])
    further = unfinished(fake_record("cg", 1, [8.0, 9.0], [0.5, 0.6]), 3)
    begun = unfinished(fake_record("sdd", 0, [2.0, 4.0], [0.5, 0.5]), 3)
    behind = unfinished(fake_record("sdd", 1, [6.0], [0.5]), 3)
    complete, incomplete = summarise([whole, further, begun, behind])
    assert (complete.name, complete.num_seeds, complete.best_noiseless[0]) == ("cg", 1, 3.0)
    assert (incomplete.name, incomplete.num_seeds) == ("sdd, 1 of 3 rounds", 2)
    assert incomplete.best_noiseless[0] == 4.0
    assert incomplete.random_search[0] == 0.5
    plot_thompson([whole, further, begun, behind], tmp_path / "plot.png")
    for record in (whole, begun):
        solver = record["settings"]["solver"]
        about = {"experiment": "thompson", "environment": ENVIRONMENT}
        write_record(tmp_path / f"thompson_tiny_{solver}.json", record | about)
    table = write_markdown(tmp_path, THOMPSON).read_text()
    assert "| cg | 0.5 | 3.000 (1) |" in table
    assert "| sdd, 2 of 3 rounds | 0.5 | 4.000 (1) |" in table


def test_runs_of_other_sizes_are_not_averaged() -> None:
    about = {"environment": ENVIRONMENT}
    short = fake_record("cg", 0, [1.0], [0.5]) | about
    long = fake_record("cg", 1, [1.0, 3.0], [0.5, 0.5]) | about
    table = thompson_table([short, long])
    assert table.count("## tiny") == 2
    assert "| cg | 0.5 | 1.000 (1) |" in table
    assert "| cg | 0.5 | 3.000 (1) |" in table


def test_published_numbers_stand_beside_the_presets_that_have_any() -> None:
    def table(name: str) -> str:
        preset = replace(TINY, name=name)
        record = fake_record("adasap", 0, [1.0], [0.5], preset)
        settings = record["settings"] | {"lengthscale": 2.0}
        return thompson_table([record | {"environment": ENVIRONMENT, "settings": settings}])

    assert "| 10.42 |" in table("adasap2025-x0.04")
    assert "180 s by SGD and SVGP" in table("lin2023-small-own-search")
    for name in ("lin2023-small-own-search", "laptop"):
        assert "Rathore" not in table(name)
    assert "A100" not in table("laptop")


def test_without_a_round_there_is_no_plot(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one run with a round"):
        plot_thompson([], tmp_path / "plot.png")


@pytest.mark.gpu
def test_a_run_on_the_gpu_agrees_with_one_on_the_cpu(record: dict[str, Any]) -> None:
    on_gpu = run_cell(ThompsonCell(TINY, "cholesky", 0.5, 0, device="cuda"))
    assert on_gpu["initial"]["best_noiseless"] == pytest.approx(
        record["initial"]["best_noiseless"], abs=1e-4
    )
    assert on_gpu["environment"]["device"] == torch.cuda.get_device_name()
    assert on_gpu["rounds"][-1]["best_noiseless"] > on_gpu["initial"]["best_noiseless"]
