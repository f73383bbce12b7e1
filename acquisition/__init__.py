"""Where to evaluate next: maximisers of posterior sample paths."""

from acquisition.candidates import propose, sampling_weights
from acquisition.constraints import FeasibleSet
from acquisition.log_ei import LogEIStrategy
from acquisition.multistart import ascend, screen
from acquisition.pathwise import PathwiseMaxPosteriorSampling, PathwiseThompsonSampling
from acquisition.pools import Chosen
from acquisition.strategies import (
    STRATEGIES,
    AutoStrategy,
    SeveralRegionsStrategy,
    ThompsonStrategy,
    TrustRegionStrategy,
)
from acquisition.strategy import Request, Strategy
from acquisition.thompson import AcquisitionProgress, ParallelThompsonSampling
from acquisition.trust_region import TrustRegion

__all__ = [
    "AcquisitionProgress",
    "AutoStrategy",
    "Chosen",
    "FeasibleSet",
    "LogEIStrategy",
    "ParallelThompsonSampling",
    "PathwiseMaxPosteriorSampling",
    "PathwiseThompsonSampling",
    "Request",
    "STRATEGIES",
    "SeveralRegionsStrategy",
    "Strategy",
    "ThompsonStrategy",
    "TrustRegion",
    "TrustRegionStrategy",
    "ascend",
    "propose",
    "sampling_weights",
    "screen",
]
