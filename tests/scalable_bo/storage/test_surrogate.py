"""The surrogate of few values."""

import pytest
import torch

from scalable_bo.storage.surrogate import SurrogateFactory, TrainingData

CPU = torch.device("cpu")


def few_values(noise: float, n: int = 40) -> TrainingData:
    """Return values of a smooth function, with noise of a standard deviation."""
    generator = torch.Generator().manual_seed(0)
    U = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    errors = torch.randn(n, dtype=torch.float64, generator=generator)
    return TrainingData.of(U, torch.sin(4.0 * U).sum(1) + noise * errors, None, True)


@pytest.mark.parametrize(("noise", "least", "most"), [(0.0, 0.0, 2e-5), (0.2, 0.02, 0.2)])
def test_few_values_have_as_little_noise_as_they_say(
    noise: float, least: float, most: float
) -> None:
    factory = SurrogateFactory.default(2, torch.float64, CPU)
    model, data = factory.fit_warped(few_values(noise), torch.Generator().manual_seed(1), few=True)
    assert least <= model.likelihood.noise.item() <= most
    weights = torch.zeros(40, 1, dtype=torch.float64)
    kept = factory.checkpoint(1, model, weights, few=True, scale_name=data.scale_name)
    restored = factory.restore(few_values(noise), kept)
    assert restored is not None
    assert torch.equal(restored[0].likelihood.noise, model.likelihood.noise)
