"""Share a study between three workers by a server, as on other machines."""

# %% The objective is a simulation that takes a while, and sometimes fails
import math
import threading
import time
from pathlib import Path

import matplotlib.pyplot as plt

import scalable_bo as sbo


def simulate(params: dict[str, float]) -> float:
    """Largest, 1, at x = 0.3 and y = 0.6; fails in a corner."""
    time.sleep(0.02)
    if params["x"] + params["y"] > 1.8:
        raise ArithmeticError("the simulation did not converge")
    return math.exp(-8 * (params["x"] - 0.3) ** 2 - 4 * (params["y"] - 0.6) ** 2)


# %% Start the server, like `scalable-bo serve study.toml --evaluations 36`. Its page is at
# `server.url`, and the token is the password
space = sbo.Space(x=sbo.Float(0, 1), y=sbo.Float(0, 1))
study = sbo.Study(space, maximize=True, seed=0)
server = sbo.Server(study, evaluations=36, batch=3)


# %% Start workers, like `scalable-bo work URL --token-file token --function module:simulate`
def work(name: str) -> None:
    """Ask, evaluate and tell until there are no more points."""
    with sbo.RemoteStudy(server.url, token=server.token, worker=name) as remote:
        while (batch := remote.ask()).ids:
            try:
                with remote.holding(batch.ids):  # keeps the lease, however long this takes
                    value = simulate(batch.params[0])
            except ArithmeticError as error:
                remote.fail(batch.ids[0], str(error))
            else:
                remote.tell(batch.ids, [value])
                done[name].append(batch.ids[0])


done: dict[str, list[int]] = {f"worker-{number}": [] for number in (1, 2, 3)}
with server:
    workers = [threading.Thread(target=work, args=(name,)) for name in done]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
print(f"{study.num_observations} values, {study.num_failed} failed, best {study.best_value:.4f}")
for name, ids in done.items():
    print(f"{name} told {len(ids)} values")

# %% Plot the values of each worker
frame = study.to_dataframe()
figure, axes = plt.subplots(figsize=(7, 4))
for name, ids in done.items():
    axes.plot(ids, frame["value"][ids], "o", label=name)
axes.step(frame.index, frame["value"].cummax().ffill(), "k", where="post", label="best so far")
axes.set(xlabel="point", ylabel="value", title="Three workers, one study")
axes.legend()
Path("results").mkdir(exist_ok=True)
figure.savefig("results/served_study.png")
print("wrote results/served_study.png")
