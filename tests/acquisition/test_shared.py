"""Thompson batches that several real processes make together, against those of one process."""

from pathlib import Path

import pytest
import torch

from tests.acquisition import shared_batches
from tests.acquisition.shared_batches import BOUNDS, Q
from tests.surrogates import shared_rows
from tests.surrogates.shared_rows import Results, as_text

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    return shared_rows.results(shared_batches.make_batches, 2, tmp_path_factory.mktemp("batches"))


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What one process finds by long ascents."""
    folder = tmp_path_factory.mktemp("alone")
    (alone,) = shared_rows.results(shared_batches.ascend_far, 1, folder)
    return alone


def test_each_process_has_its_share_of_the_paths_of_one(tmp_path: Path) -> None:
    parts = shared_rows.results(shared_batches.draw, 2, tmp_path)
    alone = shared_batches.draw(slice(0, shared_rows.N))
    for name, expected in alone.items():
        if name.endswith("values"):
            values = torch.cat([part[name] for part in parts])
            assert [len(part[name]) for part in parts] == [Q // 2, Q - Q // 2]
            close = 1e-3 if name.startswith("single") else 1e-6
            torch.testing.assert_close(values, expected, rtol=close, atol=close)
        else:
            for part in parts:
                torch.testing.assert_close(part[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", list(shared_batches.batches()))
def test_two_processes_find_the_batch_of_one(made: list[Results], name: str) -> None:
    alone = shared_batches.batches()[name]()
    assert torch.equal(made[0][name], made[1][name])
    assert made[0][name].shape == (Q, BOUNDS.shape[1])
    torch.testing.assert_close(made[0][name], alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_more_processes_find_the_batch_of_one(size: int, tmp_path: Path) -> None:
    alone = shared_batches.make_quickly(slice(0, shared_rows.N))["batch"]
    for part in shared_rows.results(shared_batches.make_quickly, size, tmp_path):
        torch.testing.assert_close(part["batch"], alone, rtol=0, atol=1e-6)


def test_a_search_by_two_precisions_is_shared(tmp_path: Path) -> None:
    make = shared_batches.make_by_two_precisions
    alone = make(slice(0, shared_rows.N))["batch"]
    for part in shared_rows.results(make, 2, tmp_path):
        torch.testing.assert_close(part["batch"], alone, rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_most_long_ascents_of_several_processes_end_where_those_of_one_do(
    size: int, far: Results, tmp_path: Path
) -> None:
    parts = shared_rows.results(shared_batches.ascend_far, size, tmp_path)
    weights = torch.cat([part["weights"] for part in parts], dim=1)
    assert weights.dtype == torch.float32
    scale = far["weights"].abs().max().item()
    torch.testing.assert_close(weights, far["weights"], rtol=0, atol=1e-3 * scale)
    for part in parts:
        assert torch.equal(part["batch"], parts[0]["batch"])
        # Rounding moves an unfinished ascent, and leads one now and then to another maximum
        distance = (part["batch"] - far["batch"]).abs().amax(1)
        assert (distance <= 0.05).double().mean() > 0.9


def test_paths_of_one_process_are_the_posterior_that_others_draw() -> None:
    model = shared_batches.model()
    mean = model.paths(3, shared=True).mean(BOUNDS)
    torch.testing.assert_close(mean, model.posterior(BOUNDS).mean.squeeze(1), rtol=1e-7, atol=1e-7)


def test_a_process_lost_in_the_ascent_ends_the_others(tmp_path: Path) -> None:
    processes = shared_rows.start(shared_batches.lose_a_process, 2, tmp_path)
    for process in processes:
        process.join(300)
    assert processes[1].exitcode == -9
    found = shared_rows.load_file(tmp_path / "0.safetensors")
    assert "lost contact with another" in as_text(found["message"])
    assert found["steps"] <= 4


def test_fewer_paths_than_processes_are_refused_with_the_remedy(tmp_path: Path) -> None:
    for part in shared_rows.results(shared_batches.ask_for_too_few, 2, tmp_path):
        few, samples, share = as_text(part["messages"]).splitlines()
        assert few == (
            "`q` must be at least 2, the number of processes that share them, got 1. Take more, or"
            " start fewer processes."
        )
        assert samples.startswith("`num_samples` must be at least 2")
        assert share.startswith("`paths` must hold q = 7 paths,") and "in this process" in share


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    folder = tmp_path_factory.mktemp("refused")
    return shared_rows.results(shared_batches.call_differently, 2, folder)


@pytest.mark.parametrize("name", list(shared_batches.different_calls(0)))
def test_calls_that_differ_between_processes_are_refused_in_all(
    refused: list[Results], name: str
) -> None:
    for rank, part in enumerate(refused):
        message = as_text(part[name])
        assert message.startswith(f"`{name}` must be the same in all processes, got ")
        assert f" in process {rank} of 2 and another in process {1 - rank}. Run the" in message
