"""A model is made of a rule: of its present settings, and of any that draws paths."""

from dataclasses import dataclass

import pytest
import torch

from surrogates import (
    CG,
    FiniteFeatureGP,
    InducingPathwiseGP,
    PathwiseGP,
    SamplePaths,
    VariationalGP,
    choose_fit,
    fit,
)
from surrogates.models.finite_feature_gp import FiniteFeatures
from surrogates.models.inducing_gp import InducingPoints
from surrogates.operators.differentiable import KernelBasis
from surrogates.rules.data_set import DataSet
from surrogates.rules.rule import Draw, FiniteRank, Rule
from surrogates.rules.solved import AllData, prior_of
from surrogates.rules.variational import Variational
from tests import problems

X = problems.uniform(30, 2)
Y = torch.sin(5 * X.sum(1, keepdim=True))
Z = problems.uniform(4, 2, seed=1)


@dataclass(frozen=True)
class Nothing(Rule):
    """A rule from outside: the data tell nothing, and the posterior is the prior."""

    def draw(self, wanted: Draw) -> tuple[SamplePaths, None]:
        data = wanted.data
        weights = data.X.new_zeros(len(data.X), wanted.num_paths)
        basis = KernelBasis(data.kernel, data.X)
        prior = prior_of(wanted, 64)
        return SamplePaths(prior, basis, weights, weights[:, :1], data.mean_module), None

    def covariance(self, data: DataSet, paths: SamplePaths) -> FiniteRank:
        return FiniteRank(paths.data, paths.weights)

    def own_fit(self, n: int) -> tuple[str, str]:
        return "exact", f"{n} points tell nothing"


class PriorGP(PathwiseGP):
    @property
    def rule(self) -> Nothing:
        return Nothing()


@pytest.mark.parametrize(
    ("model", "kind", "own"),
    [
        (PathwiseGP(X, Y), AllData, None),
        (InducingPathwiseGP(X, Y, inducing_points=5), InducingPoints, None),
        (FiniteFeatureGP(X, Y, feature_map=torch.nn.Identity()), FiniteFeatures, "finite_features"),
        (VariationalGP(X, Y, inducing_points=5), Variational, "variational"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_model_has_the_rule_of_its_name(
    model: PathwiseGP, kind: type[Rule], own: str | None
) -> None:
    assert type(model.rule) is kind
    assert model.rule.is_exact == (kind is AllData)
    fitted_by = model.rule.own_fit(30)
    assert (None if fitted_by is None else fitted_by[0]) == own


def test_a_rule_is_of_the_present_settings() -> None:
    model = PathwiseGP(X, Y, solver=CG())
    model.solver = CG(tolerance=1e-6)
    model.num_features = 64
    assert model.rule.solver_for(30) is model.solver and model.rule.num_features == 64


def test_a_model_of_a_rule_from_outside_has_its_posterior_and_its_fit() -> None:
    model = PriorGP(X, Y, num_features=64, num_paths=512)
    posterior = model.posterior(Z)
    torch.testing.assert_close(posterior.mean, Y.mean().expand(4, 1))
    prior_variance = Y.var().expand(4, 1)
    assert ((posterior.variance - prior_variance).abs() < 5 * (2 / 512) ** 0.5 * Y.var()).all()
    assert model.paths(3)(Z).shape == (3, 4) and model.solution is None
    assert choose_fit(model) == (("exact",), "30 points tell nothing")


@pytest.mark.parametrize("method", ["finite_features", "variational"])
def test_a_fit_of_another_rule_is_refused(method: str) -> None:
    with pytest.raises(TypeError, match="`model` must be a .*GP, got PathwiseGP"):
        fit(PathwiseGP(X, Y), method)
