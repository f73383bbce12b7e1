"""Computer experiments, against values worked out by hand from their definitions."""

import math

import pytest
import torch

from benchmarks.fits.simulators import SIMULATORS

Z = math.pi / 4
E = math.e


@pytest.mark.parametrize(
    ("name", "point", "value"),
    [
        # log(r / r_w) = 1, 2 L T_u / (r_w² K_w) = 2, T_u / T_l = 1: 2π · 1 · 6 / (1 · 4)
        ("borehole", (1.0, E, 1.0, 10.0, 1.0, 4.0, 2.0, 2.0), 3.0 * math.pi),
        # log(r / r_w) = 2, 2 L T_u / (2 r_w² K_w) = 3, T_u / T_l = 4: 2π · 4 · 2 / (2 · 8)
        ("borehole", (2.0, 2.0 * E**2, 4.0, 7.0, 1.0, 5.0, 3.0, 1.0), math.pi),
        # V_b1 = 6, β (R_c2 + 9) = 100, R_f = 25: (6.74 · 100 + 11.35 · 25 + 0.74 · 25 · 100 / 2) /
        # 125
        ("otl", (50.0, 50.0, 25.0, 2.0, 1.0, 10.0), (674.0 + 283.75 + 925.0) / 125.0),
        # powers of 1 alone but A^0.6 = 2^0.6 and (N_z W_dg)^0.49 = 4^0.49; 100 t_c = 1; S_w W_p = 5
        (
            "wing",
            (1.0, 1.0, 2.0, 0.0, 1.0, 1.0, 0.01, 2.0, 2.0, 5.0),
            0.036 * 2.0**0.6 * 4.0**0.49 + 5.0,
        ),
        # 60 degrees: cos² = 1/4 and 100 t_c / cos = 2
        (
            "wing",
            (16.0, 1.0, 1.0, 60.0, 1.0, 1.0, 0.01, 1.0, 1.0, 0.0),
            0.036 * 16.0**0.758 * 4.0**0.6 * 2.0**-0.3,
        ),
        (
            "wing",
            (1.0, 3.0, 1.0, 0.0, 5.0, 7.0, 0.01, 1.0, 1.0, 0.0),
            0.036 * 3.0**0.0035 * 5.0**0.006 * 7.0**0.04,
        ),
        # w = 1 + (x − 1) / 4 = (1.5, 1, 1, 1): sin²(1.5 π) + 0.25 (1 + 10 sin²(1.5 π + 1))
        ("levy", (3.0, 1.0, 1.0, 1.0), 1.0 + 0.25 * (1.0 + 10.0 * math.cos(1.0) ** 2)),
        # Σ x² / 4000 − cos(π) + 1
        ("griewank", (math.pi, 0.0, 0.0, 0.0, 0.0, 0.0), math.pi**2 / 4000.0 + 2.0),
        (
            "griewank",
            (0.0, math.pi * math.sqrt(2.0), 0.0, 0.0, 0.0, 0.0),
            2.0 * math.pi**2 / 4000.0 + 2.0,
        ),
    ],
)
def test_functions_have_the_values_of_their_definitions(
    name: str, point: tuple[float, ...], value: float
) -> None:
    simulator = SIMULATORS[name]
    assert len(point) == len(simulator.bounds)
    assert simulator.function(torch.tensor([point], dtype=torch.float64)).item() == pytest.approx(
        value, rel=1e-12
    )


@pytest.mark.parametrize("name", SIMULATORS)
def test_samples_lie_within_the_bounds_and_have_the_stated_noise(name: str) -> None:
    simulator = SIMULATORS[name]
    n = 20_000
    X, y = simulator.sample(n, torch.Generator().manual_seed(0))
    lower, upper = torch.tensor(simulator.bounds, dtype=torch.float64).T
    unit = (X - lower) / (upper - lower)
    assert (unit >= 0).all() and (unit <= 1).all()
    assert torch.allclose(
        unit.mean(0),
        torch.full((len(lower),), 0.5, dtype=torch.float64),
        atol=5 * 0.29 / math.sqrt(n),
    )
    noise = (y - simulator.function(X)).std() / y.std()
    assert noise.item() == pytest.approx(simulator.noise_std, rel=5 / math.sqrt(2 * n) + 0.02)


def test_the_same_generator_gives_the_same_sample() -> None:
    first, second = (
        SIMULATORS["otl"].sample(10, torch.Generator().manual_seed(seed)) for seed in (1, 1)
    )
    other = SIMULATORS["otl"].sample(10, torch.Generator().manual_seed(2))
    assert torch.equal(first[1], second[1]) and not torch.equal(first[1], other[1])
