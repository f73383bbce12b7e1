"""Many numbers are drawn where they are used, by generators that follow from the one given; few by
that one.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from surrogates import KernelSystem, Nystrom, SketchAndProject, kernel_operator, memory
from surrogates.functions.draws import standard_normal
from surrogates.systems.shared_rows import SharedRows
from tests import problems
from tests.problems import seeded
from tests.simulated_device import NAME, SimulatedGenerator, simulated_device


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A device with generators of its own."""
    monkeypatch.setattr(memory, "DEVICE_TYPES", {NAME})

    on_cpu = memory.seeded
    monkeypatch.setattr(
        memory,
        "seeded",
        lambda device, seed: (
            SimulatedGenerator(seed) if device.type == NAME else on_cpu(device, seed)
        ),
    )
    with simulated_device() as there:
        yield there


@pytest.mark.parametrize("count", [memory.MANY - 1, memory.MANY])
def test_few_numbers_are_those_of_the_cpu_and_many_the_devices_own(
    count: int, device: torch.device
) -> None:
    like = torch.ones((), dtype=torch.float64)
    on_cpu = standard_normal((count,), like, seeded())
    there = standard_normal((count,), like.to(device), seeded())
    assert there.device == device
    assert torch.equal(there.cpu(), on_cpu) == (count < memory.MANY)
    assert torch.equal(standard_normal((count,), like.to(device), seeded()).cpu(), there.cpu())


def test_draws_of_a_device_are_normal_and_differ_from_one_another(device: torch.device) -> None:
    given = seeded()
    like = torch.ones((), dtype=torch.float32, device=device)
    first, second = (standard_normal((300, 1000), like, given).cpu() for _ in range(2))
    assert first.dtype == torch.float32
    assert not torch.equal(first, second)
    for draws in (first, second):
        assert abs(draws.mean()) < 5 / draws.numel() ** 0.5
        assert abs(draws.var() - 1.0) < 5 * (2 / draws.numel()) ** 0.5


def test_rows_drawn_there_are_the_same_however_they_are_shared(
    device: torch.device, spy: Any
) -> None:
    draw = spy(memory, "seeded")
    like = torch.ones((), dtype=torch.float64, device=device)
    n = memory.MANY // 30 + 1  # rows of three streams
    whole = SharedRows(n, device).normal(30, seeded(), like=like)
    parts = []
    for start, count in ((0, 5000), (5000, 2), (5002, n - 5002)):
        rows = SharedRows(count, device)
        rows.start = start
        rows.n = n
        parts.append(rows.normal(30, seeded(), like=like))
    assert torch.equal(torch.cat(parts), whole)
    assert {call.args[0] for call in draw.call_args_list} == {device}


def test_sketches_drawn_there_solve_the_system(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "drawing_device", lambda device, count: device)
    X = problems.uniform(60, 2)
    rhs = problems.normal(60, 2)
    system = KernelSystem(kernel_operator(problems.matern(1.5, 0.4).to(device), X.to(device)), 0.1)
    solver = SketchAndProject(
        Nystrom(15, sketch="gaussian"), block_size=20, tolerance=1e-3, max_epochs=100.0
    )
    solution = solver.solve(system, rhs.to(device), generator=seeded())
    exact = torch.linalg.solve(system.to_dense().cpu(), rhs)
    assert solution.converged.all()
    assert problems.relative_error(solution.value.cpu(), exact) < 1e-2


@pytest.mark.gpu
def test_a_seed_means_the_same_whenever_a_cuda_device_draws() -> None:
    like = torch.ones((), device="cuda")
    first, again = (standard_normal((memory.MANY,), like, seeded()) for _ in range(2))
    assert first.is_cuda
    assert torch.equal(first, again)
    assert not torch.equal(first.cpu(), standard_normal((memory.MANY,), like.cpu(), seeded()))
