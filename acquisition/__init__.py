"""Where to evaluate next: maximisers of posterior sample paths."""

from acquisition.candidates import propose, sampling_weights
from acquisition.multistart import ascend, screen
from acquisition.thompson import AcquisitionProgress, ParallelThompsonSampling

__all__ = ["AcquisitionProgress", "ParallelThompsonSampling", "ascend", "propose", "sampling_weights", "screen"]
