"""A Thompson sampler that takes little time, where a test is not about what it finds."""

from functools import partial

from acquisition import ParallelThompsonSampling

QUICK = partial(
    ParallelThompsonSampling, num_candidates=50, num_rounds=2, num_starts=2, num_steps=5
)
