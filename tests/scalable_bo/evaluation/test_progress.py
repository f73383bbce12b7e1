"""Fitting with a bar: what a user sees, and that the result is the same."""

from types import SimpleNamespace

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
    model = sbo.fit(sbo.PathwiseGP(X, Y), callback=lambda n, value: steps.append(n), progress=True)
    said, account = capsys.readouterr().err.splitlines()
    assert said == "fit_exact: 30 points, up to 1000 by the exact marginal likelihood"
    assert account.startswith("exact: taken, ")
    assert steps == list(range(1, len(steps) + 1))
    torch.testing.assert_close(
        model.covar_module.lengthscale, fit_exact(sbo.PathwiseGP(X, Y)).covar_module.lengthscale
    )


def test_a_fit_writes_nothing_unless_it_is_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    sbo.fit(sbo.PathwiseGP(X, Y), "iterative", num_steps=1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("enabled", "shown"), [(None, 2), (True, 0), (False, None)])
def test_a_terminal_shows_the_bar_of_a_long_fit_and_at_once_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, enabled: bool | None, shown: int | None
) -> None:
    clock = iter([0.0, 1.0, 6.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock.__next__))
    with RoundProgress(None, console=Console(force_terminal=True), enabled=enabled) as bar:
        started = [bar._bar.live.is_started]
        for step in (1, 2):
            bar.status("", completed=step)
            started.append(bar._bar.live.is_started)
    assert next((i for i, is_started in enumerate(started) if is_started), None) == shown


@pytest.mark.parametrize("enabled", [True, None, False])
def test_off_a_terminal_a_long_phase_prints_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], enabled: bool | None
) -> None:
    now = 0.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    with RoundProgress(None, enabled=enabled) as rounds:
        for now in map(float, range(4)):  # a short round
            rounds.status(f"{now:.0f} s")
        rounds.finish_round("round 1")
        for now in map(float, range(4, 230)):
            rounds.status(f"{now:.0f} s")
        rounds.finish_round("round 2")
        for now in map(float, range(230, 236)):
            rounds.status(f"{now:.0f} s")
    lines = ["round 1", "9 s", "20 s", "41 s", "82 s", "143 s", "204 s", "round 2", "235 s"]
    assert capsys.readouterr().err.splitlines() == (lines if enabled else [])


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
