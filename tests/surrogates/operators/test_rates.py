"""What devices are good at: measured once, anywhere, and what choices make of it."""

import math
from dataclasses import asdict, replace
from unittest.mock import Mock

import pytest
import torch

from surrogates import CG, Auto, Cholesky, Dense, KernelSystem, SketchAndProject, Tiled, memory
from surrogates.operators import rates
from surrogates.operators.rates import measured_rates, rates_of
from surrogates.solvers.sketch_and_project import default_block_size
from tests import problems
from tests.simulated_device import NAME

CPU = torch.device("cpu")
SMALL = {"n": 64, "num_columns": 16}


def test_rates_are_measured_on_the_device_and_are_powers_of_two(device: torch.device) -> None:
    for value in asdict(measured_rates(device, **SMALL)).values():
        assert 0.0 < value < math.inf
        assert math.log2(value) == round(math.log2(value))


def test_a_rate_is_the_time_of_a_part_over_that_of_an_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Whatever is called takes a second: 64² entries and 2 · 64² · 16 operations of the product
    monkeypatch.setattr(memory, "seconds", lambda call, device: 1.0)
    found = measured_rates(CPU, **SMALL)
    assert found.evaluate == found.read == found.gather == found.copy == 32.0
    assert found.column == found.double_column == 2.0
    assert found.double == 1.0
    assert found.factorise == 2.0 ** round(math.log2(2 * 16 * 3 / 64))


def test_a_device_is_measured_once(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    measure = Mock(return_value=replace(rates_of(CPU), evaluate=128.0))
    monkeypatch.setattr(memory, "DEVICE_TYPES", {NAME})
    monkeypatch.setattr(rates, "measured_rates", measure)
    rates._measured.cache_clear()
    try:
        assert [rates_of(device).evaluate for _ in range(2)] == [128.0, 128.0]
        assert measure.call_count == 1
    finally:
        rates._measured.cache_clear()


def test_a_cpu_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "measured_rates", None)
    assert rates_of(CPU) == rates_of(CPU)


def test_choices_follow_the_rates_of_the_device(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    X = problems.uniform(1500, 2).to(device)
    system = KernelSystem(problems.operator(Dense, problems.matern(1.5), X), 1e-2)
    own = rates_of(CPU)
    chosen = []
    for factorise in (1e-3, 1e3):  # beside a product: nothing, and everything
        given = replace(own, factorise=factorise, block_factorise=factorise, copy=1.0)
        monkeypatch.setattr("surrogates.solvers.auto.rates_of", lambda device, given=given: given)
        chosen.append(type(Auto().choose(system, 1).solver))
    assert chosen == [Cholesky, CG]


def test_calls_count_where_a_step_is_little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    X = problems.uniform(1500, 2, dtype=torch.float32)
    system = KernelSystem(problems.operator(Tiled, problems.matern(0.5).to(X), X), 1e-2)
    chosen = []
    for call in (0.0, 1e9):
        given = replace(rates_of(CPU), call=call)
        monkeypatch.setattr("surrogates.solvers.auto.rates_of", lambda device, given=given: given)
        chosen.append(type(Auto(direct=False).choose(system, 300).solver))
    assert chosen == [SketchAndProject, CG]


def test_blocks_are_smaller_where_factorising_is_dear(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    found = replace(rates_of(CPU), column=2.2, block_factorise=6.0)
    monkeypatch.setattr(memory, "DEVICE_TYPES", {NAME})
    monkeypatch.setattr(rates, "_measured", lambda device: found)
    whole = default_block_size(10_000, 64)
    assert default_block_size(10_000, 64, CPU) == whole == 1068
    assert default_block_size(10_000, 64, device) == pytest.approx(whole / 2, abs=1)
    X = problems.uniform(2000, 2).to(device)
    system = KernelSystem(problems.operator(Tiled, problems.matern(1.5), X), 1e-2)
    sizes = []
    for is_shared in (False, True):  # then all processes take those of a CPU
        monkeypatch.setattr(type(system.rows), "is_shared", is_shared)
        sizes.append(SketchAndProject.asap()._block_size(system, 64))
    assert sizes == [default_block_size(2000, 64, device), default_block_size(2000, 64)]
    sketched = SketchAndProject.adasap()  # which factorises nothing large
    monkeypatch.setattr(type(system.rows), "is_shared", False)
    assert sketched._block_size(system, 64) == default_block_size(2000, 64)


@pytest.mark.gpu
def test_the_rates_of_a_cuda_device_are_measured_in_seconds() -> None:
    device = torch.device("cuda", 0)
    found = rates_of(device)
    assert found is rates_of(device)
    assert found.column <= 2.0 and found.double < 64.0
