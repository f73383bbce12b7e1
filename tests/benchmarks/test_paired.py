"""Runs by two ways are compared where they share problem and seed, solved ones as equals."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paired import main, read_side
from scalable_bo.experiments.records import read_record


def keep(folder: Path, regret: float, *, seed: int = 0, **others: Any) -> None:
    """Write a league's record into a folder."""
    record = {
        "experiment": "optimisers",
        "settings": {
            "problem": "levy-4",
            "optimiser": "auto",
            "q": 5,
            "budget": 60,
            "noise": 0.0,
            "seed": seed,
        },
        "environment": {"commit": folder.name, "device": "cpu", "cpu": "some"},
        "complete": True,
        "optimum": 0.0,
        "range": 100.0,
        "trace": [[5, 2.0], [60, regret]],
        "regret": regret,
        "regret_recommended": regret,
    }
    settings = {name: others.pop(name) for name in ("problem", "optimiser") if name in others}
    record["settings"] |= settings
    record |= others
    folder.mkdir(exist_ok=True)
    name = "_".join(map(str, record["settings"].values()))
    (folder / f"{name}.json").write_text(json.dumps(record))


def compared(tmp_path: Path, *more: str) -> dict[str, Any]:
    """Return the record of what lies in the folders a and b."""
    out = tmp_path / "out.json"
    main([f"a={tmp_path / 'a'}", f"b={tmp_path / 'b'}", "--out", str(out), *more])
    return read_record(out)


def test_ratios_are_of_pairs_and_their_error_is_that_of_the_geometric_mean(tmp_path: Path) -> None:
    for seed, (first, second) in enumerate([(1.0, 4.0), (2.0, 2.0), (8.0, 2.0), (1.0, 8.0)]):
        keep(tmp_path / "a", first, seed=seed)
        keep(tmp_path / "b", second, seed=seed)
    keep(tmp_path / "a", 100.0, seed=7)
    keep(tmp_path / "b", 0.1, seed=8)
    found = compared(tmp_path)
    assert (found["pairs"], found["better"], found["worse"], found["alike"]) == (4, 1, 2, 1)
    assert found["geometric_mean_ratio"] == pytest.approx(2 ** (3 / 4))
    # Of the exponents 2, 0, -2, 3
    deviation = (sum((power - 0.75) ** 2 for power in (2, 0, -2, 3)) / 3) ** 0.5
    assert found["its_standard_error_as_a_factor"] == pytest.approx(2 ** (deviation / 2))
    assert found["origins"]["b"]["commit"] == ["b"]


def test_what_is_solved_by_both_is_alike(tmp_path: Path) -> None:
    keep(tmp_path / "a", 1e-9)
    keep(tmp_path / "b", 1e-3)  # 1e-5 of the range
    found = compared(tmp_path)
    assert (found["alike"], found["geometric_mean_ratio"]) == (1, 1.0)
    assert found["its_standard_error_as_a_factor"] is None


def test_costs_of_an_unknown_optimum_have_no_ratio(tmp_path: Path) -> None:
    for seed, second in enumerate([0.9, 1.1, 1.0 + 1e-5]):
        keep(tmp_path / "a", 1.0, seed=seed, optimum=None, range=None)
        keep(tmp_path / "b", second, seed=seed, optimum=None, range=None)
    found = compared(tmp_path)
    assert (found["better"], found["worse"], found["alike"]) == (1, 1, 1)
    assert (found["ratios"], found["geometric_mean_ratio"]) == (0, None)


def test_optimisers_of_one_folder_and_the_best_observed_points_are_compared(tmp_path: Path) -> None:
    keep(tmp_path / "a", 3.0, regret_recommended=1.0)
    keep(tmp_path / "a", 12.0, optimiser="cma", regret_recommended=2.0)
    out = tmp_path / "out.json"
    sides = [f"{name}={tmp_path / 'a'}:{name}" for name in ("auto", "cma")]
    main([*sides, "--out", str(out)])
    assert read_record(out)["geometric_mean_ratio"] == pytest.approx(2.0)
    main([*sides, "--out", str(out), "--measure", "regret"])
    assert read_record(out)["geometric_mean_ratio"] == pytest.approx(4.0)


def test_runs_that_cannot_be_paired_are_refused(tmp_path: Path) -> None:
    keep(tmp_path / "a", 1.0, seed=0)
    keep(tmp_path / "b", 1.0, seed=1)
    with pytest.raises(SystemExit, match="a and b must have runs of the same problem, seed"):
        compared(tmp_path)
    keep(tmp_path / "a", 1.0, optimiser="cma")
    with pytest.raises(ValueError, match=r"must have one optimiser, got auto and cma\. Write"):
        compared(tmp_path)
    with pytest.raises(ValueError, match="A side must be LABEL=FOLDER"):
        read_side("results")
