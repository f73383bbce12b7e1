"""The grid of known functions and noise that fits are measured on."""

from typing import Any

import pytest
import torch

from benchmarks import fit_grid
from benchmarks.fit_grid import Cell
from surrogates import PathwiseGP

CELL = Cell("sine", 40, 2, 10.0, "matern12")


def entry(noise: float = 1.0, rmse: float = 0.1, density: float = -1.4) -> dict[str, Any]:
    return {"noise": noise, "rmse": rmse, "density": density}


def test_the_spread_has_every_number_of_inputs_ratio_kernel_source_and_dtype() -> None:
    cells = list(fit_grid.spread(500))
    assert len({(cell.d, cell.ratio) for cell in cells}) == len(cells) == 20
    for part, values in (
        ("kernel", fit_grid.KERNELS),
        ("source", fit_grid.SOURCES),
        ("dtype", fit_grid.DTYPES),
    ):
        counts = [sum(getattr(cell, part) == value for cell in cells) for value in values]
        assert min(counts) >= 4
    sparse = list(fit_grid.spread(500, sparse=True))
    assert set(sparse) < set(cells) and len(sparse) == 8
    assert {cell.ratio for cell in sparse} == set(fit_grid.RATIOS)


def test_the_data_have_the_signal_and_noise_of_the_cell() -> None:
    data = fit_grid.draw(Cell("ripples", 4000, 3, 10.0, "rbf"))
    assert data.test_f.var().item() == pytest.approx(1.0, abs=0.1)
    assert (data.test_y - data.test_f).var().item() == pytest.approx(0.1, rel=0.15)


def test_finished_methods_are_kept_and_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfitted(cell: Cell, data: fit_grid.Data) -> PathwiseGP:
        return fit_grid.model_of(cell, data.X, data.y)

    monkeypatch.setattr(fit_grid, "METHODS", {"reference": unfitted})
    done = {"fit": entry()}
    record = fit_grid.run(CELL, ["fit", "reference"], done, "0123abc")
    assert record["fit"] == done["fit"]
    noise = unfitted(CELL, fit_grid.draw(CELL)).noise * fit_grid.draw(CELL).y.var()
    assert record["reference"]["noise"] == pytest.approx(noise.item() / 0.1, rel=1e-3)
    assert record["reference"]["commit"] == "0123abc"


@pytest.mark.parametrize(
    ("ours", "theirs", "missed"),
    [
        (entry(rmse=0.109), entry(), False),
        (entry(rmse=0.111), entry(), True),
        (entry(density=-1.421), entry(), True),
        (entry(noise=0.8), entry(noise=1.05), True),
        (entry(noise=0.8), entry(noise=0.7), False),
    ],
    ids=["near", "error", "density", "noise", "noise that nobody finds"],
)
def test_a_miss_is_an_error_a_density_or_a_noise_that_the_reference_does_not_have(
    ours: dict[str, Any], theirs: dict[str, Any], missed: bool
) -> None:
    assert fit_grid.is_miss({"fit": ours, "reference": theirs}) == missed


def test_predictions_from_neighbours_agree_with_exact_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = fit_grid.draw(CELL)
    model = fit_grid.model_of(CELL, data.X, data.y)
    exact = fit_grid.measure(CELL, data, model)
    monkeypatch.setattr(fit_grid, "EXACT_UP_TO", 0)
    monkeypatch.setattr(fit_grid, "NUM_NEIGHBOURS", CELL.n)
    assert torch.tensor(list(fit_grid.measure(CELL, data, model).values())).allclose(
        torch.tensor(list(exact.values())), rtol=1e-3
    )
