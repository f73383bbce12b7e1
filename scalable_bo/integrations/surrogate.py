"""The surrogate of a study for those who keep none from one batch to the next."""

import torch

from acquisition.strategy import ChoosingStrategy, Strategy
from scalable_bo.storage.surrogate import SurrogateFactory, TrainingData
from surrogates import PathwiseGP


def fitted_model(
    factory: SurrogateFactory,
    strategy: Strategy,
    data: TrainingData,
    q: int,
    generator: torch.Generator,
    *,
    has_limit: bool = False,
) -> PathwiseGP:
    """Return the model that a study would choose q points by: the one for few values where the
    strategy asks for it.

    Args:
        has_limit: whether the values have a limit to keep, so that they stay on their scale.
    """
    few = isinstance(strategy, ChoosingStrategy) and strategy.is_for_few(q, len(data.U))
    if has_limit:
        return factory.build(data, factory.fit(data, generator))
    fitted, data = factory.fit_warped(data, generator, few=few)
    return factory.build(data, fitted)
