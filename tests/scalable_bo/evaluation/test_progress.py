"""Fitting with a bar: what a user sees, and that the result is the same."""

import pytest
import torch
from rich.console import Console

import scalable_bo as sbo
from scalable_bo.evaluation import progress
from scalable_bo.evaluation.progress import RoundProgress
from surrogates import fit_exact
from tests import problems

X = problems.uniform(30, 2)
Y = torch.sin(6.0 * X.sum(1, keepdim=True)) + 0.1 * problems.normal(30, 1, seed=1)


def test_the_choice_is_said_and_the_fit_is_that_of_the_method(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps: list[int] = []
    model = sbo.fit(sbo.PathwiseGP(X, Y), callback=lambda step, value: steps.append(step))
    said, account = capsys.readouterr().err.splitlines()
    assert said == "fit_exact: 30 points, up to 1000 by the exact marginal likelihood"
    assert account.startswith("exact: taken, ")
    assert steps == list(range(1, len(steps) + 1))
    torch.testing.assert_close(
        model.covar_module.lengthscale, fit_exact(sbo.PathwiseGP(X, Y)).covar_module.lengthscale
    )


def test_a_quiet_fit_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    sbo.fit(sbo.PathwiseGP(X, Y), "iterative", num_steps=1, progress=False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("has_widgets", [False, True])
def test_a_notebook_shows_a_bar_where_it_has_the_widgets(
    monkeypatch: pytest.MonkeyPatch, has_widgets: bool
) -> None:
    monkeypatch.setattr(progress, "find_spec", lambda name: object() if has_widgets else None)
    console = Console(force_jupyter=True)
    assert RoundProgress(3, console=console)._bar.disable is not has_widgets
    assert RoundProgress(3, console=console, enabled=False)._bar.disable


def test_names_in_a_line_of_progress_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    with RoundProgress(1) as rounds:
        rounds.status("T [°C] [/red]")
        rounds.finish_round("best 1 at T [°C] = 3, :smile:")
    assert "best 1 at T [°C] = 3, :smile:" in capsys.readouterr().err
