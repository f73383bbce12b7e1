"""Pools: a batch from any number of candidates, part by part, is the one from all at once."""

import pickle
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from acquisition import AcquisitionProgress, ParallelThompsonSampling, pools
from acquisition.constraints import FeasibleSet
from acquisition.pools import Choosing, Chosen, RandomValues, choose, read_parts
from acquisition.selection import DUPLICATE_DISTANCE, KnownPoints, TooFewCandidates
from surrogates import PathwiseGP, SamplePaths, memory
from tests import problems

UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
LINE = torch.tensor([[0.0], [1.0]], dtype=torch.float64)


class Waves:
    """Functions of one input with many maxima."""

    def __init__(self, num_samples: int):
        self.num_samples = num_samples

    def __call__(self, X: Tensor) -> Tensor:
        frequencies = torch.arange(1, self.num_samples + 1, dtype=X.dtype).unsqueeze(1)
        return torch.sin(17.0 * frequencies * X.squeeze(1))


def one_after_the_other(values: Tensor, X: Tensor, free: Tensor) -> list[int]:
    """Return what the functions choose of all candidates, by the definition."""
    chosen: list[int] = []
    for row in values:
        for j in row.argsort(descending=True, stable=True).tolist():
            if free[j] and all(abs(X[j] - X[i]) > DUPLICATE_DISTANCE for i in chosen):
                chosen.append(j)
                break
    return chosen


@given(
    seed=st.integers(0, 1000),
    num_functions=st.integers(1, 6),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    at_once=st.integers(1, 20),
    sign=st.sampled_from([1.0, -1.0]),
)
def test_parts_of_a_pool_give_what_the_whole_gives(
    seed: int, num_functions: int, sizes: list[int], at_once: int, sign: float
) -> None:
    generator = problems.seeded(seed)
    # Twelve values: many repeat
    X = torch.randint(12, (sum(sizes) + 12, 1), generator=generator).double() / 11.0
    X[-12:, 0] = torch.arange(12).double() / 11.0
    parts = [*X.split([*sizes, 12])]
    known = KnownPoints(X[-12:][:3], LINE)
    functions = Waves(num_functions)
    with patch.object(memory, "part_size", return_value=at_once):
        chosen = choose(functions, read_parts(parts, LINE), FeasibleSet.of(LINE), known, sign=sign)
    expected = one_after_the_other(sign * functions(X), X, ~known.near(X))
    assert torch.equal(chosen.points, X[expected])
    assert torch.equal(X[chosen.rows], chosen.points)


def test_with_repeats_each_function_has_its_best_even_if_it_is_known() -> None:
    X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(1)
    functions = Waves(3)
    chosen = choose(
        functions,
        read_parts(X.split(7), LINE),
        FeasibleSet.of(LINE),
        KnownPoints(X, LINE),
        repeats=True,
    )
    assert torch.equal(chosen.rows, functions(X).argmax(1))


def test_only_what_was_taken_is_kept() -> None:
    choosing = Choosing(Waves(3), torch.ones(1, dtype=torch.float64))
    X = problems.uniform(500, 1)
    for rows in torch.arange(500).split(10):
        choosing.add(Chosen(X[rows], rows))
        assert choosing.kept is not None and len(choosing.kept.rows) == 3


@pytest.mark.parametrize("num_copies", [10, 1000])
def test_points_that_come_often_cost_no_further_turns(num_copies: int) -> None:
    X = torch.linspace(0, 1, 14, dtype=torch.float64).unsqueeze(1)
    known = KnownPoints(X[:2], LINE)
    functions = Waves(10)
    choosing = Choosing(functions, torch.ones(1, dtype=torch.float64), known)
    with patch.object(pools, "_in_turn", wraps=pools._in_turn) as turns:
        choosing.add(Chosen(X.repeat(num_copies, 1), torch.arange(14 * num_copies)))
    assert turns.call_count <= 14
    chosen = choosing.chosen(14 * num_copies)
    expected = one_after_the_other(functions(X), X, ~known.near(X))
    assert torch.equal(chosen.points, X[expected])


def test_lots_take_every_candidate_equally_often() -> None:
    counts = torch.zeros(8)
    parts = [LINE.new_tensor([[0.1], [0.2], [0.3]]), torch.arange(4, 9).unsqueeze(1) / 10.0]
    for seed in range(400):
        lots = RandomValues(2, problems.seeded(seed))
        rows = choose(lots, read_parts(parts, LINE), FeasibleSet.of(LINE)).rows
        assert rows[0] != rows[1]
        counts[rows] += 1
    assert (counts - 100.0).abs().max() < 4.0 * (100.0 * 0.75) ** 0.5


def grid(num_parts: int) -> Tensor:
    points = problems.uniform(90, 2, seed=3)
    return points.repeat(num_parts, 1)


@pytest.mark.parametrize("maximize", [True, False])
def test_a_stream_gives_the_batch_of_the_same_choices_in_a_tensor(
    maximize: bool, model: PathwiseGP
) -> None:
    X = torch.cat([grid(2), model.train_inputs[0]])
    sampler = ParallelThompsonSampling(
        model,
        UNIT,
        maximize=maximize,
        seed=1,
        inequality_constraints=[(torch.tensor([0, 1]), torch.ones(2).double(), 0.4)],
    )
    expected = sampler.generate(6, choices=X, X_pending=X[:5])
    batch = sampler.generate(6, choices=iter(X.split(17)), X_pending=X[:5])
    torch.testing.assert_close(batch, expected, rtol=0, atol=0)


def test_labels_and_rows_tell_which_candidates_they_are(make_model: Any) -> None:
    X = grid(1)
    names = np.array([f"point {i}" for i in range(len(X))])
    parts = [(X[i : i + 20].numpy(), names[i : i + 20]) for i in range(0, len(X), 20)]
    chosen = ParallelThompsonSampling(make_model(UNIT), UNIT, seed=0).choose(4, parts)
    assert torch.equal(X[chosen.rows], chosen.points)
    assert chosen.labels.tolist() == names[chosen.rows.numpy()].tolist()


@pytest.mark.parametrize(
    "parts",
    [
        [[2**53 + 1] * 45, ["a"] * 45],
        [[2**53 + 1] * 45, [0.5] * 45],
        [[2**53 + 1, "a", None] * 15, [("b", 1)] * 45],
        [torch.full((45,), 2**53 + 1), torch.full((45,), 0.5)],
        [torch.full((45,), 2**53 + 1), ["a"] * 45],
    ],
)
def test_labels_are_returned_as_they_were_given(make_model: Any, parts: list[Any]) -> None:
    given = [label for labels in parts for label in list(labels)]
    pool = list(zip(grid(1).split(45), parts, strict=True))
    chosen = ParallelThompsonSampling(make_model(UNIT), UNIT, seed=0).choose(20, pool)
    assert {row < 45 for row in chosen.rows.tolist()} == {True, False}
    for label, row in zip(chosen.labels, chosen.rows.tolist(), strict=True):
        expected = given[row].item() if isinstance(given[row], Tensor) else given[row]
        assert (label, type(label)) == (expected, type(expected))


def test_progress_counts_rows_and_knows_the_total_of_a_pool_that_tells_it(make_model: Any) -> None:
    class Told(list[Tensor]):
        num_rows = 90

    for kind, total in ((Told, 90), (list, None)):
        seen: list[AcquisitionProgress] = []
        sampler = ParallelThompsonSampling(make_model(UNIT), UNIT, callback=seen.append)
        sampler.choose(2, kind(grid(1).split(40)))
        assert [(moment.stage, moment.done, moment.total) for moment in seen] == [
            ("pool", 40, total),
            ("pool", 80, total),
            ("pool", 90, total),
        ]


@pytest.mark.parametrize(
    ("pool", "error", "message"),
    [
        (5, TypeError, "The pool must be an iterable of parts"),
        ("rows.parquet", TypeError, "The pool must be an iterable of parts"),
        ([[0.1, 0.2]], TypeError, "must be tensors or arrays .* got list in part 0"),
        ([torch.zeros(3, 3)], ValueError, r"must have shape \(c, 2\), got \(3, 3\).* in part 0"),
        ([(torch.zeros(3, 2), [1])], ValueError, "one for each of 3 points, got 1 in part 0"),
        (torch.zeros(3), ValueError, r"shape \(c, 2\), got \(3,\) .* Give a row to each point"),
        (np.zeros((3, 1), np.uint8), ValueError, r"`numpy.unpackbits\(..., axis=1, count=2\)`"),
        ([np.zeros((3, 2), object)], TypeError, r"object in part 0: .* with `.astype\(float\)`"),
        ([torch.zeros(3, 2).to_sparse()], TypeError, r"be dense, .* in part 0. .* `.to_dense\(\)`"),
        ([(torch.zeros(3, 2), 1, 2)], ValueError, "pairs of points and labels, got a tuple of 3"),
        ([(torch.zeros(1, 2), iter([1]))], TypeError, "must be an array or a list, got list_iter"),
    ],
)
def test_what_is_no_pool_is_refused_before_paths_are_drawn(
    monkeypatch: Any, pool: Any, error: type[Exception], message: str, model: PathwiseGP
) -> None:
    monkeypatch.setattr(model, "paths", lambda *args, **kwargs: pytest.fail("drawn"))
    with pytest.raises(error, match=message):
        ParallelThompsonSampling(model, UNIT).choose(2, pool)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([torch.zeros(4, 2), torch.tensor([[0.1, 0.2], [torch.nan, 0.1]])], "others in row 5"),
        ([torch.zeros(4, 2), torch.zeros(1, 3)], "in part 1"),
        ([torch.zeros(4, 2), (torch.zeros(1, 2), [1])], "none, got part 1 with them"),
        ([torch.zeros(4, 2)], "must hold q = 2 distinct points .* got 1 among 4 rows"),
        ([torch.zeros(4, 2)], "count as one where they are within 1e-06 of the box's sides"),
        ([torch.full((4, 2), 2.0)], "got 0 among 4 rows, of which 4 are infeasible. Add"),
        ([], "got 0 among 0 rows"),
    ],
)
def test_a_bad_part_is_named(make_model: Any, parts: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ParallelThompsonSampling(make_model(UNIT), UNIT).choose(2, parts)


def test_points_in_one_array_are_one_part(make_model: Any) -> None:
    sampler = ParallelThompsonSampling(make_model(UNIT), UNIT, seed=0)
    expected = sampler.generate(4, choices=grid(1))
    for pool in (grid(1), grid(1).numpy()):
        assert torch.equal(sampler.choose(4, pool).points, expected)
    assert torch.equal(sampler.generate(4, choices=grid(1).numpy()), expected)


def test_paths_of_several_processes_are_refused(make_model: Any) -> None:
    sampler = ParallelThompsonSampling(make_model(UNIT), UNIT, shared=True)
    with pytest.raises(ValueError, match="`shared` must be False for a pool"):
        sampler.choose(2, [grid(1)])


def test_an_interrupt_closes_the_stream(make_model: Any) -> None:
    closed = []

    def stream() -> Iterator[Tensor]:
        try:
            yield from grid(1).split(30)
        finally:
            closed.append(True)

    stop = Mock(side_effect=KeyboardInterrupt)
    sampler = ParallelThompsonSampling(make_model(UNIT), UNIT, callback=stop)
    with pytest.raises(KeyboardInterrupt):
        sampler.choose(2, stream())
    assert closed == [True]


def test_values_are_computed_for_a_bounded_number_of_candidates(make_model: Any, spy: Any) -> None:
    evaluate = spy(SamplePaths, "__call__")
    with patch.object(memory, "part_size", return_value=16):
        ParallelThompsonSampling(make_model(UNIT), UNIT).choose(3, [grid(1)])
    assert max(len(call.args[1]) for call in evaluate.call_args_list) <= 16


def test_an_error_of_too_few_candidates_can_be_pickled() -> None:
    error = TooFewCandidates(q=3, num_found=2, num_rows=5, num_infeasible=1)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
