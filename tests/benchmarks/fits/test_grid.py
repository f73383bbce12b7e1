"""The grid of known functions and noise that fits are measured on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fits import grid
from benchmarks.fits.fit_tables import fits_table
from benchmarks.fits.grid import GridCell
from benchmarks.fits.presets import FIT_PRESETS
from scalable_bo.experiments.cells import run_cells, silent

CELL = GridCell(data="sine", n=40, d=2, ratio=10.0, kernel="matern12", method="fit")


def entry(noise: float = 1.0, rmse: float = 0.1, nll: float = 1.4) -> dict[str, Any]:
    return {"noise_over_truth": noise, "rmse": rmse, "nll": nll}


def test_a_sample_has_the_same_cells_by_every_method() -> None:
    cells = FIT_PRESETS["weak"].cells(sample=20)
    assert len(cells) == 60 and len(set(cells)) == 60
    assert cells == FIT_PRESETS["weak"].cells(sample=20)
    for first, second, third in zip(cells[::3], cells[1::3], cells[2::3], strict=True):
        assert [first.method, second.method, third.method] == ["fit", "reference", "likeliest"]
        assert replace(second, method="fit") == replace(third, method="fit") == first
    assert {cell.n for cell in FIT_PRESETS["grid"].cells(sample=5, n=70)} == {70}
    with pytest.raises(ValueError, match="`sample` must be at least 1, got 0"):
        FIT_PRESETS["weak"].cells(sample=0)


def test_the_data_have_the_signal_and_noise_of_the_cell() -> None:
    cell = GridCell(data="ripples", n=4000, d=3, ratio=10.0, kernel="rbf", method="fit")
    data = grid.draw(cell)
    assert data.test_f.var().item() == pytest.approx(1.0, abs=0.1)
    assert (data.test_y - data.test_f).var().item() == pytest.approx(0.1, rel=0.15)


@pytest.mark.parametrize("method", grid.GRID_METHODS)
def test_every_method_learns_the_noise_and_the_function(method: str) -> None:
    record = replace(CELL, n=200, kernel="rbf", method=method).measure(silent)
    assert record["noise_over_truth"] == pytest.approx(1.0, abs=0.5)
    assert record["rmse"] < 0.3


def test_priors_are_what_the_likeliest_fit_lacks() -> None:
    cells = [replace(CELL, kernel="rbf", method=name) for name in ("reference", "likeliest")]
    data = grid.draw(CELL)
    models = [grid.GRID_METHODS[cell.method](cell, data) for cell in cells]
    assert models[0].noise.item() != models[1].noise.item()
    assert all(list(model.likelihood.noise_covar.named_priors()) for model in models)


@pytest.mark.parametrize(
    ("ours", "theirs", "missed"),
    [
        (entry(rmse=0.109), entry(), False),
        (entry(rmse=0.111), entry(), True),
        (entry(nll=1.421), entry(), True),
        (entry(noise=0.8), entry(noise=1.05), True),
        (entry(noise=0.8), entry(noise=0.7), False),
    ],
    ids=["near", "error", "density", "noise", "noise that nobody finds"],
)
def test_a_miss_is_an_error_a_density_or_a_noise_that_the_reference_does_not_have(
    ours: dict[str, Any], theirs: dict[str, Any], missed: bool
) -> None:
    assert grid.is_miss(ours, theirs) == missed


def test_predictions_from_neighbours_agree_with_exact_ones() -> None:
    data = grid.draw(CELL)
    model = grid.model_of(CELL, data.X, data.y)
    exact = grid.judged(CELL, data, model)
    near = grid.judged(CELL, data, model, exact_up_to=0, num_neighbours=CELL.n)
    assert near == pytest.approx(exact, rel=1e-3)


def test_the_table_is_of_the_cells_that_all_methods_have(tmp_path: Path) -> None:
    cells = [replace(CELL, method=name) for name in ("fit", "reference")]
    records = [record for _, record, _ in run_cells([*cells, replace(CELL, n=50)], tmp_path)]
    assert records[2]["settings"]["n"] == 50
    lines = [line for line in fits_table(records).splitlines() if line.startswith("| 40 |")]
    assert [line.split(" | ")[2:4] for line in lines] == [["fit", "1"], ["reference", "1"]]
    assert "| 50 |" not in fits_table(records)
