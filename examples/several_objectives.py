"""Optimise several objectives under a limit: a beam should be light and stiff, and must not break.
The study finds the Pareto front.
"""

# %% A steel cantilever, 1 m long, with 1 kN at its end; a rectangular hollow section
from pathlib import Path

import matplotlib.pyplot as plt

from scalable_bo import Float, Space, Study

LENGTH = 1000.0  # mm
FORCE = 1000.0  # N
MODULUS = 210_000.0  # N/mm²
DENSITY = 7.85e-6  # kg/mm³
STRENGTH = 160.0  # N/mm²


def beam(params: dict) -> dict:
    """Mass in kg, deflection of the end in mm, largest stress in N/mm²."""
    width = params["width"]
    height = params["height"]
    inner_width = width - 2 * params["wall"]
    inner_height = height - 2 * params["wall"]
    inertia = (width * height**3 - inner_width * inner_height**3) / 12
    return {
        "mass": DENSITY * LENGTH * (width * height - inner_width * inner_height),
        "deflection": FORCE * LENGTH**3 / (3 * MODULUS * inertia),
        "stress": FORCE * LENGTH * height / 2 / inertia,
    }


# %% Each objective and each limited outcome has a surrogate of its own
study = Study(
    Space(width=Float(20, 80), height=Float(20, 120), wall=Float(1, 6)),
    objectives={"mass": "minimize", "deflection": "minimize"},
    outcome_constraints={"stress": (None, STRENGTH)},
    seed=0,
)
result = study.optimize(beam, rounds=4, batch=12)
print(f"{len(result.front)} of {len(result.outcomes)} beams are on the front; every fifth:")
for point in sorted(result.front, key=lambda point: point.outcomes["mass"])[::5]:
    print(
        ", ".join(
            f"{name} {value:.3g}" for name, value in {**point.outcomes, **point.params}.items()
        )
    )

# %% Plot the front among all beams
figure, axes = plt.subplots(figsize=(8, 4.5))
mass, deflection, _ = result.outcomes.T
kept = result.feasible
axes.plot(mass[~kept], deflection[~kept], "x", color="#BBBBBB", label="breaks")
axes.plot(mass[kept], deflection[kept], "o", color="#0072B2", markersize=4, label="holds")
front = sorted((point.outcomes["mass"], point.outcomes["deflection"]) for point in result.front)
axes.step(*zip(*front, strict=True), where="post", color="#D55E00", label="front")
axes.set(yscale="log", xlabel="mass, kg", ylabel="deflection, mm")
axes.legend(loc="upper right")
Path("results").mkdir(exist_ok=True)
figure.savefig("results/several_objectives.png")
print("wrote results/several_objectives.png")
