"""One ask: where its solve starts, how much it searches, what it says meanwhile."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scalable_bo.space.space import Float, Space
from scalable_bo.study.study import Study
from surrogates import CG, Solution
from surrogates.solvers.solver import Request
from tests import problems
from tests.quick import QUICK

SPACE = Space(x=Float(0.0, 1.0), y=Float(0.0, 1.0))
STARTS: list[Tensor | None] = []


@dataclass(frozen=True)
class Watched(CG):
    """CG that notes where it starts from and what it finds."""

    def _solve(self, request: Request) -> Solution:
        initial = request.initial
        STARTS.append(None if initial is None else initial[:, :1].clone())
        return super()._solve(request)


@pytest.mark.parametrize("resumed", [False, True])
def test_a_solve_starts_from_the_last_weights_in_the_new_units(
    tmp_path: Path, resumed: bool
) -> None:
    STARTS.clear()

    def open_study() -> Study:
        return Study(
            SPACE,
            maximize=True,
            seed=1,
            path=tmp_path,
            solver=Watched(None, tolerance=1e-8),
            sampler=QUICK,
        )

    X = problems.uniform(40, 2)
    values = X[:, 0] - X[:, 1].square()
    study = open_study()
    study.add_data(X, values)
    batch = study.ask(2)
    weights = study._proposer.surrogate.checkpoint.tensors["mean_weights"].clone()  # type: ignore[union-attr]
    study.tell(batch.ids, [2.0, 2.5])  # far out: the standard deviation grows
    if resumed:
        study.close()
        study = open_study()
    study.ask(2)
    assert STARTS[0] is None
    scales = (
        values.std(),
        torch.cat([values, torch.tensor([2.0, 2.5], dtype=torch.float64)]).std(),
    )
    assert 1.3 * scales[0] < scales[1] < 2.0 * scales[0]
    torch.testing.assert_close(STARTS[1][: len(X)], weights * scales[0] / scales[1])
    study.close()


def test_an_ask_says_how_far_it_has_got() -> None:
    study = Study(SPACE, maximize=True, solver=CG(None), sampler=QUICK)
    X = problems.uniform(20, 2)
    study.add_data(X, X[:, 0])
    lines: list[str] = []
    batch = study.ask(3, callback=lines.append)
    assert any(line.startswith("solving, ") and line.endswith("/4 columns done") for line in lines)
    assert lines[-7:] == [
        "screening 1/2",
        "screening 2/2",
        *(f"ascent {step}/5" for step in range(1, 6)),
    ]
    silent = Study(SPACE, maximize=True, solver=CG(None), sampler=QUICK)
    silent.add_data(X, X[:, 0])
    assert torch.equal(silent.ask(3).X, batch.X)


def test_an_ask_that_does_not_fit_in_memory_is_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = Study(SPACE, maximize=True, sampler=QUICK)
    X = problems.uniform(20, 2)
    study.add_data(X, X[:, 0])
    with monkeypatch.context() as patch:
        patch.setattr("surrogates.memory.available", lambda device: 2**16)
        with pytest.raises(
            MemoryError,
            match=(
                "An ask for 200 points among 20 rows needs .* Ask for fewer at a time, or use"
                " `dtype=torch"
            ),
        ):
            study.ask(200)
        assert study.model is None
        assert len(study.to_dataframe()) == 20
        assert study.ask(2).ids == [20, 21]
