"""Warnings point at the line of the caller, however it came to us."""

from collections.abc import Callable

import pytest
import torch

import scalable_bo
import surrogates
from surrogates import CG, GPRegressor, NoSignalWarning, PathwiseGP, UnsolvedWarning
from surrogates.callers import warn
from tests import problems

GENERATOR = problems.seeded()
X = torch.rand(60, 2, dtype=torch.float64, generator=GENERATOR)
NOISE = torch.randn(60, 1, dtype=torch.float64, generator=GENERATOR)


@pytest.mark.parametrize("name", ["surrogates.made", "scalable_bo", "torch.made", "sklearn.made"])
def test_what_lies_between_is_passed_over(name: str) -> None:
    module = {"__name__": "surrogates.made", "warn": warn}
    exec("def ours():\n    warn('a remedy')\n", module)
    between = {"__name__": name, "ours": module["ours"]}
    exec("def theirs():\n    ours()\n", between)
    with pytest.warns(UserWarning, match="a remedy") as caught:
        between["theirs"]()  # type: ignore[operator]
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "fit",
    [
        lambda: surrogates.fit(PathwiseGP(X, NOISE)),
        lambda: scalable_bo.fit(PathwiseGP(X, NOISE)),
        lambda: GPRegressor().fit(X.numpy(), NOISE[:, 0].numpy()),
    ],
    ids=["surrogates", "scalable_bo", "sklearn"],
)
def test_a_fit_without_a_signal_says_so_where_it_was_asked_for(fit: Callable[[], object]) -> None:
    with pytest.warns(NoSignalWarning) as caught:
        fit()
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "ask",
    [lambda model: model.paths(2), lambda model: model.posterior(X[:3]).mean],
    ids=["paths", "posterior"],
)
def test_an_unsolved_system_is_named_where_it_was_asked_for(
    ask: Callable[[PathwiseGP], object],
) -> None:
    solver = CG(None, tolerance=1e-9, max_epochs=2.0)
    model = PathwiseGP(X, NOISE, solver=solver, num_paths=16).eval()
    model.likelihood.noise = 1e-3
    with pytest.warns(UnsolvedWarning) as caught:
        ask(model)
    assert caught[0].filename == __file__
