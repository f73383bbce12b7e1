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

__all__ = ["STRATEGIES", "AutoStrategy", "LogEIStrategy", "SeveralRegionsStrategy", "Strategy"]
__all__ += ["Request", "ThompsonStrategy", "TrustRegion", "TrustRegionStrategy"]
__all__ += ["AcquisitionProgress", "Chosen", "FeasibleSet"]
__all__ += ["ParallelThompsonSampling", "PathwiseMaxPosteriorSampling", "PathwiseThompsonSampling"]
__all__ += ["ascend", "propose", "sampling_weights", "screen"]
