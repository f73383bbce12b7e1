"""Optimise a black box with a Study: by hand with ask and tell, or with optimize."""

# %% A cost to minimise, of two parameters on different scales; some evaluations fail
import math
from functools import partial

from scalable_bo import Float, ParallelThompsonSampling, Space, Study


def cost(params: dict[str, float]) -> float:
    """Smallest, 0.1, at rate = 0.003 and width = 40; fails for large rates on wide models."""
    rate = params["rate"]
    width = params["width"]
    if rate * width > 20:
        return math.nan
    return 0.1 + math.log10(rate / 0.003) ** 2 + ((width - 40) / 60) ** 2


space = Space(rate=Float(1e-5, 1.0, log=True), width=Float(1, 200))

# %% Ask for points, evaluate them anywhere, tell their values, in any order; NaN says that an
# evaluation failed
sampler = partial(
    ParallelThompsonSampling, num_candidates=2000, num_rounds=10, num_starts=10, learning_rate=0.01
)
study = Study(space, maximize=False, seed=0, sampler=sampler)
for _ in range(3):
    batch = study.ask(10)
    study.tell(batch.ids, [cost(params) for params in batch.params])
print(
    f"ask and tell: {study.num_observations} values, {study.result.num_failed} failed, best"
    f" {study.result.best_value:.4f}"
)

# %% Or let the study do that, for some rounds more
result = study.optimize(cost, rounds=3, batch=20)
print(
    f"optimize: {len(result.values)} values, best {result.best_value:.4f} at {result.best_params}"
)
