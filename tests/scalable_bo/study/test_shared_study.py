"""Studies whose batches several real processes make together."""

from pathlib import Path

import pytest
import torch

from tests.scalable_bo.study import shared_study
from tests.surrogates import shared_rows
from tests.surrogates.shared_rows import as_text

pytestmark = pytest.mark.distributed


def test_two_processes_ask_for_the_points_of_one_also_after_one_was_lost(tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    for process in shared_rows.start(shared_study.run, 2, lost, tmp_path, True):
        process.join(120)
    message = as_text(shared_rows.load_file(lost / "0.safetensors")["message"])
    assert "lost contact with another" in message
    first, second = shared_rows.results(shared_study.run, 2, tmp_path / "on", tmp_path, False)
    assert second["rows"] == 0  # it has no study of its own
    with shared_study.make() as alone:
        X = shared_study.rounds(alone)
    torch.testing.assert_close(first["X"], X, rtol=0, atol=1e-4)


def test_a_process_alone_has_none_to_assist() -> None:
    with shared_study.make() as study:
        assert not study.assist()
    with shared_study.make(shared=False) as study:
        assert not study.assist()


def test_few_points_and_other_strategies_are_the_first_processs_own(tmp_path: Path) -> None:
    for strategy in ("auto", "log-ei"):
        with shared_study.make(strategy=strategy, sampler=None, num_initial=2) as study:
            batch = study.ask(2)
            study.tell(batch.ids, [1.0, 2.0])
            assert len(study.ask(1).ids) == 1
