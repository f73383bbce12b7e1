"""GPyTorch's examples of exact Gaussian processes, and scikit-learn's tests of its regressor, with
our models in the place of theirs:

    python -m tests.botorch_suite.peers gpytorch <test/examples/ of GPyTorch's repository>
    python -m tests.botorch_suite.peers scikit-learn <sklearn/gaussian_process/tests/>

Nothing is fetched. What fails for a known reason is listed in ``expected_failures.toml``.
"""

import argparse
import importlib
import sys
import tomllib
from pathlib import Path
from typing import Any

import gpytorch.kernels as gk
import numpy as np
import pytest
import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from surrogates import GPRegressor, PathwiseGP
from tests.botorch_suite.runner import EXPECTED, SwappedModel, entries

# What applies: GPyTorch's models of one output, and what scikit-learn asks of predictions
FILES = {
    "gpytorch": [
        "test_simple_gp_regression.py",
        "test_white_noise_regression.py",
        "test_spectral_mixture_gp_regression.py",
        "test_fixed_noise_fanatasy_updates.py",
        "test_missing_data.py",
        "test_model_list_gp_regression.py",
        "test_grid_gp_regression.py",
    ],
    "scikit-learn": [
        f"test_gpr.py::test_{name}"
        for name in (
            "gpr_interpolation",
            "gpr_interpolation_structured",
            "sample_statistics",
            "predict_cov_vs_std",
            "large_variance_y",
            "duplicate_input",
            "gpr_consistency_std_cov_non_invertible_kernel",
            "predict_shapes",
            "sample_y_shapes",
            "gpr_predict_no_cov_no_std_return",
        )
    ],
}


class ExactGP(PathwiseGP):
    """Ours by the constructor of ``gpytorch.models.ExactGP``."""

    def __init__(self, train_inputs: Any, train_targets: Tensor | None, likelihood: Any):
        X = train_inputs[0] if isinstance(train_inputs, tuple) else train_inputs
        if X is None:
            raise NotImplementedError("A model needs data.")
        X = X.unsqueeze(-1) if X.ndim == 1 else X
        if train_targets.shape != X.shape[:-1]:
            raise NotImplementedError("Outputs are columns of `train_Y`.")
        super().__init__(
            X, train_targets.unsqueeze(-1), likelihood=likelihood, outcome_transform=None
        )

    @property
    def num_outputs(self) -> int:
        return 1


class GaussianProcessRegressor(GPRegressor):
    """Ours by the constructor of scikit-learn's."""

    def __init__(
        self,
        kernel: Any = None,
        *,
        alpha: Any = 1e-10,
        optimizer: str | None = "fmin_l_bfgs_b",
        normalize_y: bool = False,
    ):
        kernel = None if kernel is None else of_gpytorch(kernel).double()
        super().__init__(kernel, noise_variance=alpha, optimize=optimizer is not None)


def of_gpytorch(kernel: Any) -> gk.Kernel:
    """Return scikit-learn's kernel as one of GPyTorch's."""
    if isinstance(kernel, sk.Sum):
        return of_gpytorch(kernel.k1) + of_gpytorch(kernel.k2)
    if isinstance(kernel, sk.Product):
        return of_gpytorch(kernel.k1) * of_gpytorch(kernel.k2)
    if isinstance(kernel, sk.ConstantKernel):
        constant = gk.ConstantKernel()
        constant.constant = torch.tensor(float(kernel.constant_value))
        return constant
    if isinstance(kernel, sk.RBF):
        lengths = torch.as_tensor(np.atleast_1d(kernel.length_scale))
        rbf = gk.RBFKernel(ard_num_dims=len(lengths))
        rbf.lengthscale = lengths
        return rbf.requires_grad_(kernel.length_scale_bounds != "fixed")
    raise NotImplementedError(f"{type(kernel).__name__} has no counterpart here.")


PEERS = {
    "gpytorch": ("gpytorch.models", "ExactGP", ExactGP),
    "scikit-learn": (
        "sklearn.gaussian_process",
        "GaussianProcessRegressor",
        GaussianProcessRegressor,
    ),
}


class SwappedPeer(SwappedModel):
    """Pytest plugin: our model under the peer's name, and expected failures."""

    def __init__(self, peer: str, expected: Path):
        self.mode = peer
        self.whole = True
        self.patch = pytest.MonkeyPatch()
        self.ours = entries(tomllib.loads(expected.read_text()).get(peer, []))
        self.theirs = {}
        self.unknown = []
        self.counts = {}

    def pytest_sessionstart(self) -> None:
        module, name, model = PEERS[self.mode]
        self.patch.setattr(importlib.import_module(module), name, model)


def main(arguments: list[str] | None = None) -> int:
    """Run the tests and return pytest's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.botorch_suite.peers")
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("folder", type=Path, help="the folder of the peer's tests")
    parser.add_argument("--expected", type=Path, default=EXPECTED, help="the expected failures")
    options, pytest_arguments = parser.parse_known_intermixed_args(arguments)
    folder = options.folder.resolve()
    tests = [f"{folder}/{test}" for test in FILES[options.peer]]
    if missing := [test for test in tests if not Path(test.split("::")[0]).is_file()]:
        parser.error(f"`folder` must hold {missing[0].rsplit('/', 1)[1]}, got {folder}.")
    sys.dont_write_bytecode = True  # the folder is the user's
    settings = ["-c", "/dev/null", "--rootdir", str(folder), "-p", "no:cacheprovider"]
    plugin = SwappedPeer(options.peer, options.expected)
    return pytest.main([*settings, *pytest_arguments, *tests], plugins=[plugin])


if __name__ == "__main__":
    sys.exit(main())
