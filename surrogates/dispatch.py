"""Our sample paths where BoTorch draws its own: ``draw_matheron_paths`` and all that is built on it.

Importing this module registers :class:`PathwiseGP` and its subclasses with BoTorch's dispatcher, so that ``PathwiseThompsonSampling``,
``get_matheron_path_model`` and ``optimize_posterior_samples`` use the model's solver, and paths that are evaluated tile by tile.
"""

from typing import Any

import torch
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import draw_kernel_feature_paths
from botorch.sampling.pathwise.update_strategies import gaussian_update
from gpytorch.models import ExactGP
from torch import Size, Tensor

from surrogates.models import PathwiseGP
from surrogates.paths import SamplePaths


class PathwiseSamplePath(SamplePath):
    """:class:`SamplePaths` in the shapes of BoTorch, in the user's units and without transforms of its own.

    Args:
        paths: s functions.
        sample_shape: of s elements; empty for one function.
    """

    def __init__(self, paths: SamplePaths, sample_shape: Size):
        super().__init__()
        self.paths, self.sample_shape = paths, sample_shape

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Return the functions at x (batch, q, d): broadcast(sample_shape, batch) + (q,).

        Where the batch has a dimension beside one of the sample shape, each function is evaluated at points of its own.
        """
        shape = torch.broadcast_shapes(self.sample_shape, x.shape[:-2])
        x = x.reshape(*[1] * (len(shape) - x.ndim + 2), *x.shape)
        first = len(shape) - len(self.sample_shape)
        sampled = [first + i for i, size in enumerate(self.sample_shape) if size != 1]
        others = [size for i, size in enumerate(x.shape[:-2]) if i not in sampled]
        sizes, front = [shape[i] for i in sampled], list(range(len(sampled)))
        if all(x.shape[i] == 1 for i in sampled):
            values = self.paths(x.reshape(*others, *x.shape[-2:]))
        else:
            x = x.expand(*[shape[i] if i in sampled else size for i, size in enumerate(x.shape[:-2])], *x.shape[-2:])
            values = self.paths.each(x.movedim(sampled, front).reshape(self.paths.num_samples, -1, x.shape[-1]))
        return values.reshape(*sizes, *others, x.shape[-2]).movedim(front, sampled)

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Do nothing: the model is no ensemble."""


@DrawMatheronPaths.register(PathwiseGP)
def _draw_paths(model: PathwiseGP, *, sample_shape: Size, prior_sampler: Any, update_strategy: Any) -> SamplePath:
    """Draw paths with a seed from the global generator, like all of BoTorch; other samplers than BoTorch's defaults are obeyed."""
    stock = prior_sampler is draw_kernel_feature_paths and update_strategy is gaussian_update
    if not stock and not model.has_exact_posterior:
        raise ValueError(
            f"`prior_sampler` and `update_strategy` must be BoTorch's defaults for a {type(model).__name__}, got {prior_sampler!r} and "
            f"{update_strategy!r}. BoTorch's own updates are those of all data: use a PathwiseGP."
        )
    if not stock or model.train_inputs[0].ndim > 2:
        model.eval()
        return DrawMatheronPaths.funcs[(ExactGP,)](
            model, sample_shape=sample_shape, prior_sampler=prior_sampler, update_strategy=update_strategy
        )
    seed = int(torch.randint(2**62, ()))
    sample_shape = Size(sample_shape)
    return PathwiseSamplePath(model.paths(sample_shape.numel(), generator=torch.Generator().manual_seed(seed)), sample_shape)
