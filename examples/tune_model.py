"""Tune a scikit-learn model with mixed parameters, evaluations in several processes,
and a study in a folder.
"""

# %% The objective is a function of a dict at the top of a module, so that processes can import it
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer, StandardScaler

from scalable_bo import Categorical, Int, Space, Study

SCALERS = {"none": "passthrough", "standard": StandardScaler(), "power": PowerTransformer()}
SPACE = Space(
    neighbours=Int(1, 50, log=True),
    p=Int(1, 4),
    weights=Categorical(["uniform", "distance"]),
    scaler=Categorical(list(SCALERS)),
)


def error(params: dict) -> float:
    """The cross-validated error of a nearest-neighbour classifier on handwritten digits."""
    X, y = load_digits(return_X_y=True)
    classifier = KNeighborsClassifier(
        params["neighbours"], p=params["p"], weights=params["weights"]
    )
    model = make_pipeline(SCALERS[params["scaler"]], classifier)
    return 1 - cross_val_score(model, X[::3], y[::3], cv=3).mean()


# %% Run two rounds of twelve. The study gets a function that makes the pool, so that it continues
# if a process dies
def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_pool = partial(ProcessPoolExecutor, 2, mp_context=get_context("spawn"))
        with Study(SPACE, maximize=False, seed=0, path=folder) as study:
            study.optimize(error, rounds=2, batch=12, executor=make_pool, timeout=60.0)
        # The same line opens it again, here or after a crash
        with Study(SPACE, maximize=False, seed=0, path=folder) as study:
            result = study.optimize(error, rounds=1, batch=12, executor=make_pool, timeout=60.0)
            frame = study.to_dataframe()
    print(frame.nsmallest(5, "value")[[*SPACE.names, "value"]].to_string())
    print(f"error {result.best_value:.4f} with {result.best_params}")
    plot(frame)


# %% Plot the error over the neighbours for each scaler
def plot(frame: pd.DataFrame) -> None:
    figure, axes = plt.subplots(figsize=(8, 4))
    for scaler, tried in frame.groupby("scaler"):
        axes.plot(tried["neighbours"], tried["value"], "o", alpha=0.7, label=f"scaler: {scaler}")
    axes.set(xscale="log", xlabel="neighbours", ylabel="cross-validated error")
    axes.legend(loc="upper left")
    Path("results").mkdir(exist_ok=True)
    figure.savefig("results/tune_model.png")
    print("wrote results/tune_model.png")


if __name__ == "__main__":
    main()
