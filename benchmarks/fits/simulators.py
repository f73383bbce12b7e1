"""Computer experiments with known answers: test functions in physical units, their noise a share of
what is observed.

References:
    Surjanovic, Bingham, "Virtual Library of Simulation Experiments: Test Functions and Datasets",
    sfu.ca/~ssurjano. Chen, Zheng, Al Kontar, Raskutti (2022), "Gaussian Process Parameter
    Estimation Using Mini-batch Stochastic Gradient Descent: Convergence Guarantees and Empirical
    Benefits", Tables 1, 3 and 5: dimensions and noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from botorch.test_functions.synthetic import Griewank, Levy
from torch import Tensor


@dataclass(frozen=True)
class Simulator:
    """A function on a box.

    Attributes:
        function: maps points (n, d) in physical units to values (n,).
        bounds: lower and upper bound of every input.
        noise_std: standard deviation of the noise over that of the noisy values.
    """

    function: Callable[[Tensor], Tensor]
    bounds: tuple[tuple[float, float], ...]
    noise_std: float

    def sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return n uniform points (n, d) in physical units and their noisy values (n,), float64."""
        lower, upper = torch.tensor(self.bounds, dtype=torch.float64).T
        U = torch.rand(n, len(self.bounds), generator=generator, dtype=torch.float64)
        X = lower + (upper - lower) * U
        values = self.function(X)
        scale = self.noise_std / math.sqrt(1.0 - self.noise_std**2) * values.std()
        return X, values + scale * torch.randn(n, generator=generator, dtype=torch.float64)


def borehole(X: Tensor) -> Tensor:
    """Return the flow of water through a borehole, m³ a year.

    2π T_u (H_u − H_l) / (log(r / r_w) (1 + 2 L T_u / (log(r / r_w) r_w² K_w) + T_u / T_l))

    Args:
        X: (n, 8), columns r_w, r, T_u, H_u, T_l, H_l, L, K_w.
    """
    r_w, r, T_u, H_u, T_l, H_l, L, K_w = X.unbind(-1)
    ratio = (r / r_w).log()
    resistance = ratio * (1.0 + 2.0 * L * T_u / (ratio * r_w.square() * K_w) + T_u / T_l)
    return 2.0 * math.pi * T_u * (H_u - H_l) / resistance


def otl_circuit(X: Tensor) -> Tensor:
    """Return the mid-point voltage of an output transformerless push-pull circuit, volts.

    Args:
        X: (n, 6), columns R_b1, R_b2, R_f, R_c1, R_c2 (kΩ) and the current gain β.
    """
    R_b1, R_b2, R_f, R_c1, R_c2, beta = X.unbind(-1)
    V_b1 = 12.0 * R_b2 / (R_b1 + R_b2)
    gain = beta * (R_c2 + 9.0)
    return ((V_b1 + 0.74) * gain + 11.35 * R_f + 0.74 * R_f * gain / R_c1) / (gain + R_f)


def wing_weight(X: Tensor) -> Tensor:
    """Return the weight of a light aircraft's wing, pounds.

    0.036 S_w^0.758 W_fw^0.0035 (A / cos² Λ)^0.6 q^0.006 λ^0.04 (100 t_c / cos Λ)^−0.3 (N_z
    W_dg)^0.49 + S_w W_p

    Args:
        X: (n, 10), columns S_w, W_fw, A, Λ (degrees), q, λ, t_c, N_z, W_dg, W_p.
    """
    S_w, W_fw, A, sweep, q, taper, t_c, N_z, W_dg, W_p = X.unbind(-1)
    cos = torch.deg2rad(sweep).cos()
    size = 0.036 * S_w**0.758 * W_fw**0.0035 * (A / cos.square()) ** 0.6 * q**0.006 * taper**0.04
    return size * (100.0 * t_c / cos) ** -0.3 * (N_z * W_dg) ** 0.49 + S_w * W_p


# The noise of the OTL circuit and the wing's weight is not printed; that of the published RMSE,
# which is nearly all noise, stands for it.
SIMULATORS = {
    "levy": Simulator(Levy(dim=4).evaluate_true, ((-10.0, 10.0),) * 4, 0.174),
    "griewank": Simulator(Griewank(dim=6).evaluate_true, ((-600.0, 600.0),) * 6, 0.061),
    "borehole": Simulator(
        borehole,
        (
            (0.05, 0.15),
            (100.0, 50_000.0),
            (63_070.0, 115_600.0),
            (990.0, 1110.0),
            (63.1, 116.0),
            (700.0, 820.0),
            (1120.0, 1680.0),
            (9855.0, 12_045.0),
        ),
        0.172,
    ),
    "otl": Simulator(
        otl_circuit,
        ((50.0, 150.0), (25.0, 70.0), (0.5, 3.0), (1.2, 2.5), (0.25, 1.2), (50.0, 300.0)),
        0.4,
    ),
    "wing": Simulator(
        wing_weight,
        (
            (150.0, 200.0),
            (220.0, 300.0),
            (6.0, 10.0),
            (-10.0, 10.0),
            (16.0, 45.0),
            (0.5, 1.0),
            (0.08, 0.18),
            (2.5, 6.0),
            (1700.0, 2500.0),
            (0.025, 0.08),
        ),
        0.07,
    ),
}
