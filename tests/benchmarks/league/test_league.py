"""Records of the league, and what is made of them: medians, ranks, tables and plots."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.league import league_cell as module
from benchmarks.league import standings as plots
from benchmarks.league.base import Optimiser, SobolSearch
from benchmarks.league.league_cell import OptimiserCell
from benchmarks.league.registry import OPTIMISERS
from benchmarks.league.standings import (
    LEAGUE,
    divisions,
    league_table,
    optimiser_colours,
    plot_optimisers,
    regret_after,
    standings,
)
from benchmarks.league.subsets import SUBSETS, plan_league
from scalable_bo.experiments.cells import run_cell, run_cells
from scalable_bo.experiments.markdown_tables import write_markdown


def record(
    optimiser: str, regret: float, *, problem: str = "branin-2", seed: int = 0, **others: Any
) -> dict[str, Any]:
    """Return a complete record as a cell writes it."""
    settings = {
        "problem": problem,
        "optimiser": optimiser,
        "q": 5,
        "budget": 20,
        "seed": seed,
        "noise": 0.0,
    }
    return {
        "experiment": "optimisers",
        "settings": settings,
        "complete": True,
        "failure": None,
        "optimum": 0.0,
        "range": 100.0,
        "trace": [[5, 2.0 * regret], [15, regret]],
        "regret": regret,
        "regret_recommended": regret,
        "seconds_ask": 0.5,
        "peak_memory_bytes": 2**20,
    } | others


def test_a_record_follows_the_best_observed_point_to_the_end() -> None:
    found = run_cell(OptimiserCell("branin-2", "sobol", q=5, budget=12, seed=0))
    assert found["complete"]
    assert found["optimum"] == pytest.approx(0.397887)
    assert found["range"] > 100
    numbers = [number for number, _ in found["trace"]]
    regrets = [regret for _, regret in found["trace"]]
    assert numbers == sorted(numbers)
    assert set(numbers) <= {5, 10, 12}
    assert regrets == sorted(regrets, reverse=True)
    assert found["regret"] == found["regret_recommended"] == regrets[-1] > 0
    assert found["seconds_asking"] >= found["seconds_ask"] > 0
    assert json.loads(json.dumps(found)) == found


def test_regret_is_without_the_noise_that_was_observed() -> None:
    cell = OptimiserCell("branin-2", "sobol", q=5, budget=20, seed=0, noise=1.0)
    found = run_cell(cell)
    exact = run_cell(OptimiserCell("branin-2", "sobol", q=5, budget=20, seed=0))
    assert "_noise1_" in cell.name
    assert found["trace"] != exact["trace"]
    assert min(regret for _, regret in found["trace"]) >= exact["regret"] > 0


def test_the_regret_of_several_objectives_is_the_hypervolume_that_all_points_lack() -> None:
    found = run_cell(OptimiserCell("front-zdt1", "sobol", q=5, budget=20, seed=0))
    regrets = [regret for _, regret in found["trace"]]
    assert regrets == sorted(regrets, reverse=True)
    assert found["range"] == -found["optimum"] > found["regret"] == found["regret_recommended"] > 0
    with pytest.raises(ValueError, match="`noise` must be 0 for front-zdt1, got 1.0"):
        OptimiserCell("front-zdt1", "sobol", q=5, budget=20, seed=0, noise=1.0)
    with pytest.raises(ValueError, match="`optimiser` must be one of auto, .*qlognehvi'"):
        OptimiserCell("branin-2", "botorch-qlognehvi", q=5, budget=20, seed=0)
    with pytest.raises(ValueError, match="`optimiser` must be one of auto, .*, got 'cma'"):
        OptimiserCell("front-zdt1", "cma", q=5, budget=20, seed=0)


def test_failures_are_counted_and_no_point_that_failed_is_the_best() -> None:
    cell = OptimiserCell("failing-rising-half", "sobol", q=5, budget=40, seed=0)
    found = run_cell(cell)
    assert 10 <= len(found["failed"]) <= 30 and max(found["failed"]) <= 40
    assert found["regret"] == found["regret_recommended"] == found["trace"][-1][1]
    assert 0.0 <= found["regret"] < 0.3
    assert "regret – after 40" in cell.describe(found | {"regret": None}), "all may fail"


def test_noise_needs_a_range() -> None:
    with pytest.raises(ValueError, match="`noise` must be 0 for tune-diabetes, got 0.5"):
        run_cell(OptimiserCell("tune-diabetes", "sobol", q=1, budget=1, seed=0, noise=0.5))


def test_an_optimiser_that_fails_does_not_stop_the_league(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(SobolSearch):
        def ask(self, q: int) -> torch.Tensor:
            if len(self.X) == 10:
                raise RuntimeError("it gave up")
            return super().ask(q)

    def make(name: str, *arguments: Any) -> Optimiser:
        return (Failing if name == "cma" else SobolSearch)(*arguments)

    monkeypatch.setattr(module, "make_optimiser", make)
    cells = [OptimiserCell("branin-2", name, 5, 15, 0) for name in ("cma", "sobol")]
    failed, whole = run_cells(cells, tmp_path)
    assert failed.record["failure"] == "RuntimeError: it gave up"
    assert "failed, RuntimeError" in failed.cell.describe(failed.record)
    assert whole.record["complete"]
    assert [step.kept for step in run_cells(cells, tmp_path)] == [False, True]
    assert "| sobol |" in write_markdown(tmp_path, LEAGUE).read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimiser": "adam"}, "`optimiser` must be one of"),
        ({"q": 0}, "`q` must be at least 1, got 0"),
        ({"budget": 0}, "`budget` must be at least 1, got 0"),
        ({"seed": -1}, "`seed` must be at least 0, got -1"),
        ({"noise": -0.1}, "`noise` must be finite and at least 0, got -0.1"),
    ],
)
def test_a_cell_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"optimiser": "sobol", "q": 1, "budget": 1, "seed": 0}
    with pytest.raises(ValueError, match=message):
        OptimiserCell("branin-2", **{**settings, **change})


def test_ranks_are_of_medians_and_the_solved_share_one() -> None:
    runs = [record("auto", 3.0), record("cma", 1e-3), record("optuna-gp", 1e-9)]
    for share, expected in ((0.0, [3.0, 2.0, 1.0]), (1e-4, [3.0, 1.5, 1.5])):
        (division,) = divisions(runs, solved=share)  # of a range of 100
        ranks = division.ranks().loc["branin-2", ["auto", "cma", "optuna-gp"]]
        assert ranks.tolist() == expected


def test_standings_compare_with_the_best_peer() -> None:
    runs = [
        *(record("auto", regret, seed=s) for s, regret in enumerate([1.0, 9.0, 1.1])),
        *(record("optuna-gp", 1.0, seed=s) for s in range(3)),
        *(record("sobol", 5.0, seed=s) for s in range(3)),
        record("auto", 0.1, problem="levy-4"),
        record("optuna-gp", 1.0, problem="levy-4"),
        record("sobol", 0.9, problem="levy-4"),
    ]
    (division,) = divisions(runs)
    medians = division.medians().loc["branin-2"]
    assert medians.to_dict() == {"auto": 1.1, "optuna-gp": 1.0, "sobol": 5.0}
    found = standings(division).set_index("optimiser")
    counts = ["mean_rank", "kept_up", "far_ahead", "behind_sobol"]
    assert found.loc["auto", counts].tolist() == [1.5, 2, 1, 0]
    assert found.loc["optuna-gp", "behind_sobol"] == 1
    assert list(found.index) == ["auto", "optuna-gp", "sobol"]


def test_optimisers_are_compared_on_the_seeds_that_all_of_a_problem_have() -> None:
    runs = [
        *(record("auto", regret, seed=seed) for seed, regret in enumerate([3.0, 4.0, 5.0])),
        # Its easy seeds are not among those of its peer, nor its slow ones
        *(record("cma", regret, seed=seed) for seed, regret in ((1, 6.0), (2, 7.0))),
        *(record("cma", 0.1, seed=seed, seconds_ask=9.0) for seed in (3, 4, 5)),
        record("cma", 1.0, problem="levy-4", seed=1),
    ]
    (division,) = divisions(runs)
    medians = division.medians()
    assert medians.loc["branin-2"].to_dict() == {"auto": 4.5, "cma": 6.5}
    assert medians.loc["levy-4"].dropna().to_dict() == {"cma": 1.0}
    found = standings(division).set_index("optimiser")
    assert found["mean_rank"].to_dict() == {"auto": 1.0, "cma": 1.5}
    assert found.loc["cma", "seconds_ask"] == 0.5
    assert division.ranks(20).mean().to_dict() == {"auto": 1.0, "cma": 1.5}
    assert "| branin-2 | 2 | **4.5** | 6.5 |" in league_table(runs)


def test_a_problem_of_no_common_seed_is_left_out_and_said(tmp_path: Path) -> None:
    runs = [record("auto", 1.0, seed=0), record("cma", 0.5, seed=1)]
    (division,) = divisions(runs)
    assert (division.medians().size, division.apart) == (0, ("branin-2",))
    assert "Left out, as no seed is common to all: branin-2." in league_table(runs)
    with pytest.raises(ValueError, match=r"by the same seed of all optimisers .* got 2\."):
        plot_optimisers(runs, tmp_path / "plot.png")
    (both,) = divisions([*runs, record("auto", 1.0, problem="levy-4")])
    assert standings(both)["num_problems"].tolist() == [1]


def test_the_best_value_of_all_runs_stands_for_an_unknown_optimum() -> None:
    unknown = {"problem": "tune-digits", "optimum": None, "range": None}
    runs = [record("auto", -0.9, **unknown), record("cma", -0.7, **unknown)]
    (division,) = divisions(runs)
    lowest = min(value for run in runs for _, value in run["trace"])
    assert division.medians().loc["tune-digits", "auto"] == pytest.approx(-0.9 - lowest)


def test_runs_of_other_budgets_batches_or_noise_are_not_compared() -> None:
    runs = [record("auto", 1.0) for _ in range(3)]
    runs[1]["settings"]["budget"] = 60
    runs[2]["settings"]["noise"] = 0.3
    assert [(d.budget, d.noise) for d in divisions(runs)] == [(20, 0.0), (60, 0.0), (20, 0.3)]
    text = league_table(runs)
    assert "## 20 evaluations in batches of 5, noise 0.3 of the interquartile range" in text


def test_ranks_are_followed_over_evaluations() -> None:
    late = record("cma", 0.5, trace=[[5, 9.0], [15, 0.5]])
    runs = [record("auto", 1.0), late]
    assert regret_after(late["trace"], 4) == float("inf")
    assert regret_after(late["trace"], 14) == 9.0
    (division,) = divisions(runs)
    assert division.ranks(5).mean().to_dict() == {"auto": 1.0, "cma": 2.0}
    assert division.ranks(20).mean().to_dict() == {"auto": 2.0, "cma": 1.0}


def test_a_plot_is_drawn(tmp_path: Path) -> None:
    plot_optimisers([record("auto", 1.0), record("cma", 2.0)], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="at least one complete run, .* got 0"):
        plot_optimisers([], tmp_path / "plot.png")


def test_a_plot_says_who_stands_on_some_of_the_problems_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "draw_panels", lambda rows, path: drawn.extend(rows))
    runs = [
        *(record(name, 1.0) for name in ("auto", "cma", "sobol")),
        *(record(name, 1.0, problem="levy-4") for name in ("auto", "sobol")),
    ]
    plot_optimisers(runs, tmp_path / "plot.png")
    ((panel,),) = drawn
    assert "2 problems" in panel.settings["xlabel"]
    assert panel.settings["xlabel"].endswith("dotted: cma, on 1")
    styles = {line.style["label"]: line.style["linestyle"] for line in panel.lines}
    assert styles == {"auto": "-", "cma": ":", "sobol": "--"}


def test_every_optimiser_has_a_hue_of_its_own() -> None:
    colours = optimiser_colours()
    assert set(colours) == set(OPTIMISERS)
    assert len(set(colours.values())) == len(OPTIMISERS)


def test_a_subset_is_planned_a_seed_after_the_other() -> None:
    cells = plan_league("small", optimisers=["sobol"], seeds=[1, 0], q=[5])
    assert len(cells) == 2 * len(SUBSETS["small"].axes["problem"])
    assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
    assert {(cell.q, cell.budget, cell.noise) for cell in cells} == {(5, 60, 0.0)}
    assert {cell.noise for cell in plan_league("noisy")} == {0.3}
    night = {cell.problem for cell in plan_league("night")}
    assert night > {"hartmann-6", "tune-digits", "ackley-100", "bbob-f15-d2"}
    assert len({cell.name for cell in plan_league("night")}) == len(plan_league("night"))
