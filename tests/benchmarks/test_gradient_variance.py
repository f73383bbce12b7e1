"""The variance of gradients from one row, against the gradients of all rows."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gradient_variance import main, variances
from surrogates import KernelSystem
from surrogates.systems.system import Targets
from tests import problems


def test_the_variance_is_that_of_the_gradients_of_all_rows() -> None:
    kernel = problems.matern(1.5)
    X = problems.uniform(1200, 2)  # of two parts
    K = problems.own_evaluation(kernel, X, X)
    targets = Targets(problems.normal(1200, 2), problems.normal(1200, 2, seed=1))
    A = problems.normal(1200, 2, seed=2)
    system = KernelSystem(problems.operator(problems.OPERATORS[0], kernel, X), 0.1)
    found = variances(system, targets, A)
    for variance, gap in zip(found, (K @ A - sum(targets), K @ A - targets.values), strict=True):
        gradients = K.unsqueeze(2) * gap.unsqueeze(1)
        expected = gradients.var(0, unbiased=False).sum(0).mean().item()
        assert variance == pytest.approx(expected, rel=1e-9)


def test_the_script_looks_at_zero_after_each_budget_and_at_the_solution(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "record.json"
    arguments = ["--data", "toy", "--data-dir", str(data_dir), "--epochs", "1,2", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["gradient_variance.py", *arguments])
    main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["epochs"] for row in rows] == ["0", "1", "2", "solution"]
    # At zero weights, those of f and ε, and of f alone
    assert rows[0]["loss 1"] > rows[0]["loss 2"]
    assert all(torch.tensor([row["loss 1"], row["loss 2"]]).isfinite().all() for row in rows)
