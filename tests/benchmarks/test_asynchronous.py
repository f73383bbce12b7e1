"""The benchmark of asynchronous evaluation, in small: the clock of its simulation is right."""

import random

import pytest
import torch
from botorch.test_functions.synthetic import Hartmann

from benchmarks.asynchronous import Simulation


def simulation(seconds_of_ask: float = 0.0) -> Simulation:
    problem = Hartmann(dim=6).to(torch.float64)
    return Simulation(problem, 0, 8, seconds_of_ask, num_initial=10**6)


def test_a_round_ends_with_its_longest_evaluation_and_the_next_begins_after_an_ask() -> None:
    source = random.Random(0)
    first, second = ([10.0 ** source.random() for _ in range(8)] for _ in range(2))
    found = simulation(0.5).in_rounds(16)
    assert found.seconds[:8] == pytest.approx(sorted(0.5 + each for each in first))
    begin = 1.0 + max(first)
    assert found.seconds[8:] == pytest.approx(sorted(begin + each for each in second))


def test_no_worker_waits_for_another_without_rounds() -> None:
    source = random.Random(0)
    durations = [10.0 ** source.random() for _ in range(32)]
    free = [0.0] * 8
    ends = []
    for duration in durations:  # each to the worker that is free first
        worker = free.index(min(free))
        free[worker] += duration
        ends.append(free[worker])
    found = simulation().asynchronously(32, batch=4)
    assert found.seconds == pytest.approx(sorted(ends))
    assert found.seconds[-1] < simulation().in_rounds(32).seconds[-1]
    assert found.regret >= 0.0
