"""Drive an external simulator: a program that reads a line of JSON for each point,
and answers with a line. Some points fail, and one hangs.
"""

# %% The simulator may be in any language and need not know scalable_bo: here a ball is thrown, and
# should land 80 m away
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib.pyplot as plt

from scalable_bo import Command, Float, Space, Study

SIMULATOR = """
import json, math, sys, time

for line in sys.stdin:
    point = json.loads(line)
    speed, angle = point["params"]["speed"], math.radians(point["params"]["angle"])
    if speed > 48:
        time.sleep(1000)  # does not converge, and does not notice
    answer = {"id": point["id"]}
    if angle > 1.5:
        answer["error"] = "the thrower was hit"
    else:
        x, height, vx, vy = 0.0, 1.8, speed * math.cos(angle), speed * math.sin(angle)
        while height > 0:
            drag = 0.005 * math.hypot(vx, vy)
            x, height = x + 0.01 * vx, height + 0.01 * vy
            vx, vy = vx - 0.01 * drag * vx, vy - 0.01 * (9.81 + drag * vy)
        answer["value"] = abs(x - 80) + 0.02 * speed
    print(json.dumps(answer), flush=True)
"""

# %% Each thread runs a process. A process that exceeds the timeout is killed, and its point has
# failed with that reason
space = Space(speed=Float(5, 50), angle=Float(5, 89))
with tempfile.TemporaryDirectory() as folder:
    program = Path(folder) / "simulate.py"
    program.write_text(SIMULATOR)
    simulate = Command([sys.executable, str(program)])
    study = Study(space, maximize=False, seed=0)
    with ThreadPoolExecutor(2) as threads:
        result = study.optimize(simulate, rounds=4, batch=16, executor=threads, timeout=2.0)
    simulate.close()
print(f"best {result.best_value:.3f} at {result.best_params}; {result.num_failed} failed:")
frame = study.to_dataframe()
print(frame[frame["status"] == "failed"]["reason"].value_counts().to_string())

# %% The command line does the same: `scalable-bo run study.toml` with
#
#     [objective]
#     command = ["python", "simulate.py"]
#
#     [run]
#     executor = "threads"
#     workers = 2
#     timeout = 2.0

# %% Plot all throws, and mark the failed ones
figure, axes = plt.subplots(figsize=(8, 4.5))
failed = frame[frame["status"] == "failed"]
thrown = frame[frame["status"] == "observed"]
points = axes.scatter(thrown["angle"], thrown["speed"], c=thrown["value"], cmap="viridis_r", s=25)
axes.plot(failed["angle"], failed["speed"], "x", color="#D55E00", label="failed")
best = result.best_params
axes.plot(best["angle"], best["speed"], "*", color="black", markersize=14, label="best")
axes.set(xlabel="angle, degrees", ylabel="speed, m/s")
axes.legend(loc="lower left")
figure.colorbar(points, label="metres from the target, and effort")
Path("results").mkdir(exist_ok=True)
figure.savefig("results/external_simulator.png")
print("wrote results/external_simulator.png")
