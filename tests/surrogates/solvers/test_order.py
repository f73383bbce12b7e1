"""Random orders of the rows, held and computed."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from surrogates import Checkpoint, SketchAndProject
from surrogates.solvers import order as orders
from surrogates.solvers.order import Order, permuted
from tests import problems


def parts(n: int, size: int, seed: int = 0) -> list[torch.Tensor]:
    order = Order(n).shuffled(size, torch.Generator().manual_seed(seed), torch.device("cpu"))
    dealt = []
    while not order.is_at_end:
        part, order = order.next()
        dealt.append(part)
    return dealt


@pytest.mark.parametrize("largest_held", [orders.LARGEST_HELD, 0], ids=["held", "computed"])
@settings(max_examples=25)
@given(n=st.integers(1, 300), size=st.integers(4, 50))
def test_the_parts_are_all_rows_once(largest_held: int, n: int, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orders, "LARGEST_HELD", largest_held)
        dealt = parts(n, size)
    assert len(dealt) == -(-n // size)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    assert torch.cat(dealt).sort().values.tolist() == list(range(n))


def test_held_parts_are_those_of_a_random_permutation() -> None:
    expected = torch.randperm(103, generator=torch.Generator().manual_seed(4)).tensor_split(11)
    assert all(map(torch.equal, parts(103, 10, seed=4), expected))


def test_a_computed_order_is_held_nowhere() -> None:
    order = Order(330_000_000).shuffled(4096, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert sum(tensor.numel() for tensor in order.content) < 10
    first, order = order.next()
    second, _ = order.next()
    rows = torch.cat([first, second])
    assert len(rows.unique()) == len(rows)
    assert rows.min() >= 0 and rows.max() < 330_000_000
    # Uniform on the rows: the mean of 8192 is within 4 standard errors, and no tenth has a share
    # off by more than that.
    assert abs(rows.double().mean() / 330_000_000 - 0.5) < 4 * (1 / 12 / len(rows)) ** 0.5
    shares = torch.histc(rows.double(), 10, 0, 330_000_000) / len(rows)
    assert (shares - 0.1).abs().max() < 4 * (0.09 / len(rows)) ** 0.5


def test_computed_orders_of_different_keys_are_unrelated() -> None:
    n = 1000
    found = []
    for seed in range(400):
        keys = torch.randint(
            2**31, (orders.NUM_ROUNDS,), generator=torch.Generator().manual_seed(seed)
        )
        found.append(permuted(0, n, n, keys))
    found = torch.stack(found).double()
    # Where a row goes, and how far from its neighbour, is as in random permutations: means and
    # correlations within 5 standard errors.
    assert (found.mean(0) - (n - 1) / 2).abs().max() < 5 * n / (12 * 400) ** 0.5
    z = (found - (n - 1) / 2) / (n**2 / 12) ** 0.5
    assert (z[:, :-1] * z[:, 1:]).mean().abs() < 5 / (400 * n) ** 0.5 + 1 / n
    fixed = (found == torch.arange(n)).sum(1).double().mean()  # one a permutation, on average
    assert abs(fixed - 1.0) < 5 / 400**0.5


def test_solves_of_a_computed_order_converge_and_go_on_from_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "LARGEST_HELD", 50)
    system = problems.system(90, 0.1)
    rhs = problems.normal(90, 2)
    settings = {"block_size": 20, "tolerance": 1e-3}
    plain = SketchAndProject.asap(**settings).solve(system, rhs)
    assert plain.converged.all()

    class Interrupted(Exception):
        pass

    def interrupt(progress: object) -> None:
        if progress.steps > 7:  # type: ignore[attr-defined]
            raise Interrupted

    solver = SketchAndProject.asap(
        **settings, checkpoint=Checkpoint(tmp_path, every_seconds=None, every_steps=3)
    )
    with pytest.raises(Interrupted):
        solver.solve(system, rhs, callback=interrupt)
    assert list(tmp_path.iterdir())
    assert torch.equal(solver.solve(system, rhs).value, plain.value)
