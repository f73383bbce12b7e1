"""Studies whose batches several real processes make together."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from scalable_bo.study.team import Team
from tests.scalable_bo.study import shared_study
from tests.surrogates import shared_rows
from tests.surrogates.shared_rows import as_text

pytestmark = pytest.mark.distributed


def test_two_processes_ask_for_the_points_of_one_also_after_one_was_lost(tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    for process in shared_rows.start(shared_study.run, 2, lost, tmp_path, True):
        process.join(300)
    message = as_text(shared_rows.load_file(lost / "0.safetensors")["message"])
    assert "lost contact with another" in message
    first, second = shared_rows.results(shared_study.run, 2, tmp_path / "on", tmp_path, False)
    assert second["rows"] == 0  # it has no study of its own
    with shared_study.make() as alone:
        X = shared_study.rounds(alone)
    torch.testing.assert_close(first["X"], X, rtol=0, atol=1e-4)


def test_a_process_that_stands_still_between_batches_ends_the_others(tmp_path: Path) -> None:
    started = {
        waits: shared_rows.start(shared_study.stand_still, 3, tmp_path / name, waits, timeout=4.0)
        for waits, name in ((True, "waiting"), (False, "not yet waiting"))
    }
    try:
        for waits, name in ((True, "waiting"), (False, "not yet waiting")):
            for rank in (0, 2):
                started[waits][rank].join(300)
                found = shared_rows.load_file(tmp_path / name / f"{rank}.safetensors")
                assert "or was not heard of in time" in as_text(found["message"])
                assert "a study with a `path` from its last round" in as_text(found["message"])
                assert rank or found["seconds"] < 30.0
    finally:
        for process in [*started[True], *started[False]]:
            process.kill()


def test_after_an_error_in_a_batch_another_one_is_refused_at_once(tmp_path: Path) -> None:
    processes = shared_rows.start(shared_study.end_a_batch, 2, tmp_path, timeout=4.0)
    for process in processes:
        process.join(300)
    first = shared_rows.load_file(tmp_path / "0.safetensors")
    assert as_text(first["message"]) == (
        "The other processes cannot help with a batch, since an error ended an earlier one, which"
        " they may still be at. Start all processes again: a study with a `path` goes on from what"
        " it has stored."
    )
    assert first["seconds"] < 4.0
    second = shared_rows.load_file(tmp_path / "1.safetensors")
    assert "lost contact with another" in as_text(second["message"])


def test_a_process_alone_has_none_to_assist() -> None:
    with shared_study.make() as study:
        assert not study.assist()
    with shared_study.make(shared=False) as study:
        assert not study.assist()


@pytest.mark.parametrize(
    ("strategy", "q", "is_shared"),
    [("auto", 2, False), ("log-ei", 2, False), ("thompson", 1, False), ("thompson", 2, True)],
)
def test_others_are_sent_batches_of_paths_alone_of_which_each_process_has_one(
    monkeypatch: pytest.MonkeyPatch, strategy: str, q: int, is_shared: bool
) -> None:
    sent = []

    @contextmanager
    def working(team: Team, job: dict[str, torch.Tensor]) -> Iterator[None]:
        sent.append(int(job["q"]))
        yield

    monkeypatch.setattr(Team, "working", working)
    sampler = shared_study.SAMPLER if strategy == "thompson" else None
    with shared_study.make(strategy=strategy, sampler=sampler, num_initial=2) as study:
        study._team.size = 2
        batch = study.ask(2)
        study.tell(batch.ids, [1.0, 2.0])
        assert len(study.ask(q).ids) == q
    assert sent == ([q] if is_shared else [])
