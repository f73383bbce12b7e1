"""Feature maps φ with a learnable kernel k(x, z) = φ(x)ᵀ φ(z): of any network, or approximating a
GPyTorch kernel.

A feature map is a ``torch.nn.Module`` from points (m, d) to features (m, F), every row by itself.
Maps compose: the Gaussian kernel on a network's outputs is
``torch.nn.Sequential(network, FourierFeatures(...))``.
"""

import math
from copy import deepcopy

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from linear_operator.operators import LinearOperator, MatmulLinearOperator, RootLinearOperator
from torch import Tensor, nn

from surrogates import checks
from surrogates.functions.features import RandomFeatures
from surrogates.operators.linalg import stable_cholesky


class FeatureKernel(Kernel):
    """The kernel φ(x)ᵀ φ(z), kept as a product of features.

    Args:
        feature_map: φ, maps (m, d) to (m, F).
    """

    def __init__(self, feature_map: nn.Module) -> None:
        if not isinstance(feature_map, nn.Module):
            raise TypeError(
                f"`feature_map` must be a torch.nn.Module, got {type(feature_map).__name__}"
                f" {feature_map!r}."
            )
        super().__init__()
        self.feature_map = feature_map

    def features(self, X: Tensor) -> Tensor:
        """Return φ(X), (..., m, F), for X (..., m, d).

        Raises:
            TypeError, ValueError: if the map does not return a row of features for every point, of
                the dtype of X.
        """
        flat = X.reshape(-1, X.shape[-1])
        features = self.feature_map(flat)
        if not isinstance(features, Tensor):
            raise TypeError(f"`feature_map` must return a tensor, got {type(features).__name__}.")
        if features.ndim != 2 or len(features) != len(flat) or not features.shape[1]:
            raise ValueError(
                f"`feature_map` must map ({len(flat)}, {flat.shape[1]}) to ({len(flat)}, F), got"
                f" {tuple(features.shape)}. Flatten what it returns to a row of features for every"
                " point."
            )
        checks.like("feature_map(X)", features, "X", X)
        return features.reshape(*X.shape[:-1], features.shape[1])

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object
    ) -> Tensor | LinearOperator:
        first = self.features(x1)
        if x1.shape == x2.shape and torch.equal(x1, x2):
            return first.square().sum(-1) if diag else RootLinearOperator(first)
        second = self.features(x2)
        return (first * second).sum(-1) if diag else MatmulLinearOperator(first, second.mT)


class FourierFeatures(nn.Module):
    """F random Fourier features of an RBF or Matérn kernel, with its lengthscales learnable.

    φ(x) = sqrt(2 / F) [cos(Ωᵀ(x / ℓ)) | sin(Ωᵀ(x / ℓ))], with Ω (d, F/2) drawn once.

    Args:
        kernel: ``RBFKernel`` or ``MaternKernel``, isotropic or ARD, of all columns or its active
            ones; copied.
        dim: d, the number of input columns.
        num_features: F, even.
        orthogonal: directions from orthogonal blocks, lower variance at the same F.
        generator: of Ω; one seeded with 0 if ``None``.

    Raises:
        TypeError, ValueError: for another kernel, or F that is odd or below 2.
    References:
        Rahimi, Recht (2007), "Random Features for Large-Scale Kernel Machines"; Yu et al. (2016),
        "Orthogonal Random Features".
    """

    directions: Tensor

    def __init__(
        self,
        kernel: Kernel,
        dim: int,
        num_features: int,
        *,
        orthogonal: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(kernel, RBFKernel | MaternKernel):
            raise TypeError(
                f"`kernel` must be an RBFKernel or a MaternKernel, got {type(kernel).__name__}. A"
                " FiniteFeatureGP has an outputscale of its own: pass the base kernel of a"
                " ScaleKernel."
            )
        dim = checks.positive_int("dim", dim)
        self.kernel = deepcopy(kernel)
        unit = deepcopy(kernel)
        unit.lengthscale = torch.ones_like(kernel.lengthscale)
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        drawn = RandomFeatures.draw(
            unit,
            dim,
            num_features,
            weighted=False,  # the features have no weights of their own
            orthogonal=orthogonal,
            generator=generator,
        )
        self.dim = dim
        active = slice(None) if kernel.active_dims is None else kernel.active_dims
        self.register_buffer("directions", drawn.frequencies[active])

    def forward(self, X: Tensor) -> Tensor:
        if X.shape[-1] != self.dim:
            raise ValueError(
                f"`X` must have {self.dim} columns for these Fourier features, got {X.shape[-1]}."
            )
        active = X if self.kernel.active_dims is None else X[..., self.kernel.active_dims]
        angles = (active / self.kernel.lengthscale) @ self.directions
        return torch.cat([angles.cos(), angles.sin()], dim=-1) / math.sqrt(self.directions.shape[1])


class NystromFeatures(nn.Module):
    """Nyström features of any GPyTorch kernel on fixed points, with its hyperparameters learnable.

    φ(x) = L⁻¹ k(Z, x) with L Lᵀ = k(Z, Z), so that φ(x)ᵀ φ(z) = k(x, Z) k(Z, Z)⁻¹ k(Z, z).

    Args:
        kernel: without batch shape; copied.
        inducing_points: Z (m, d), in the units that the kernel sees: after the model's input
            transform. F = m.

    Raises:
        TypeError, ValueError: for points that are not a finite matrix.
    References:
        Williams, Seeger (2001), "Using the Nyström Method to Speed Up Kernel Machines".
    """

    inducing_points: Tensor

    def __init__(self, kernel: Kernel, inducing_points: Tensor) -> None:
        super().__init__()
        Z = checks.floating_tensor("inducing_points", inducing_points)
        if Z.ndim != 2 or 0 in Z.shape:
            raise ValueError(
                f"`inducing_points` must have shape (m, d) with m, d ≥ 1, got {tuple(Z.shape)}."
            )
        self.kernel = deepcopy(kernel)
        self.register_buffer("inducing_points", Z.detach().clone())

    def forward(self, X: Tensor) -> Tensor:
        L = stable_cholesky(self.kernel(self.inducing_points).to_dense())
        return torch.linalg.solve_triangular(
            L, self.kernel(self.inducing_points, X).to_dense(), upper=False
        ).T


class AttentionFeatures(nn.Module):
    """A transformer encoder over the d coordinates of a point: the features are those of a token
    that attends to all of them.

    The coordinates are normalised; coordinate j becomes the token x_j w_j + b_j, after a learned
    first token; layers normalise before attention and the feed-forward network (GELU, twice the
    width), without dropout, positions or masks.

    Args:
        dim: d, at least 2: what all coordinates of a point share is lost in normalising them.
        width: F, of the tokens; a multiple of ``num_heads``.
        num_layers: of the encoder.
        num_heads: of the attention.
        seed: of the initial weights.

    References:
        "Unbiased Stochastic Optimization for Gaussian Processes on Finite Dimensional RKHS",
        Section 5.3.
    """

    def __init__(
        self, dim: int, width: int = 32, *, num_layers: int = 2, num_heads: int = 4, seed: int = 0
    ) -> None:
        super().__init__()
        dim = checks.integer("dim", dim, 2, "Normalised by itself, a single coordinate is 0.")
        width = checks.positive_int("width", width)
        num_layers = checks.positive_int("num_layers", num_layers)
        num_heads = checks.positive_int("num_heads", num_heads)
        if width % num_heads:
            raise ValueError(
                f"`width` must be a multiple of `num_heads` = {num_heads}, got {width}."
            )
        seed = checks.integer("seed", seed, 0)
        generator = torch.Generator().manual_seed(seed)
        # Torch's layers start from draws of the global generator
        with torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(generator.get_state())
            layers = [
                nn.TransformerEncoderLayer(
                    width,
                    num_heads,
                    2 * width,
                    dropout=0.0,
                    activation="gelu",
                    batch_first=True,
                    norm_first=True,
                )
                for _ in range(num_layers)
            ]
            self.tokens = nn.Parameter(nn.init.xavier_uniform_(torch.empty(dim, width)))
            self.first = nn.Parameter(0.02 * torch.randn(1, width))  # of the token read out
        self.offsets = nn.Parameter(torch.zeros(dim, width))
        self.layers = nn.ModuleList(layers)
        self.normalize_inputs = nn.LayerNorm(dim)
        self.normalize_outputs = nn.LayerNorm(width)

    def forward(self, X: Tensor) -> Tensor:
        tokens = self.normalize_inputs(X).unsqueeze(-1) * self.tokens + self.offsets
        tokens = torch.cat([self.first.expand(len(X), 1, -1), tokens], dim=1)
        for layer in self.layers:
            tokens = layer(tokens)
        return self.normalize_outputs(tokens[:, 0])
