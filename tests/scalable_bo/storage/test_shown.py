"""Objects show themselves on one short line, and as a small table in a notebook."""

import math
from pathlib import Path

import pytest
import torch

import scalable_bo as sbo
from scalable_bo.report.page import render
from scalable_bo.storage.rounds import Batch
from scalable_bo.storage.shown import describe_params
from tests import problems

SPACE = sbo.Space(rate=sbo.Float(1e-5, 1.0, log=True), kind=sbo.Categorical(["<b>a</b>", "b"]))


def test_a_study_says_where_it_is_and_how_far(tmp_path: Path) -> None:
    with sbo.Study(SPACE, maximize=False, path=tmp_path / "runs") as study:
        assert repr(study) == (
            f"<The study in {tmp_path}/runs: minimize over rate, kind; 0 values, 0 failed,"
            " 0 pending>"
        )
        study.tell(study.ask(3).ids[:2], [1.5, math.nan])
    assert repr(study).endswith("; 1 value, 1 failed, 1 pending, best 1.5>")
    assert "<td style='text-align:left'>1.5</td>" in study._repr_html_()
    assert "The study in memory" in repr(sbo.Study(SPACE, maximize=True))


def test_a_result_and_a_batch_fit_a_line_however_many_points_they_have() -> None:
    study = sbo.Study(SPACE, maximize=True, num_initial=10_000)
    batch = study.ask(500)
    assert repr(batch).startswith("Batch(500 points, ids 0 … 499; the first: rate = ")
    assert len(repr(batch)) < 150
    assert repr(study.ask(1)).startswith("Batch(1 point, id 500; the first: rate = ")
    assert repr(Batch([], [], torch.empty(0, 2))) == "Batch(no points)"
    study.tell(batch.ids, batch.X[:, 0])
    shown = repr(study.result)
    assert shown.startswith("Result(")
    assert shown.endswith("500 values, 0 failed, 1 pending)")
    assert len(shown) < 150


def test_many_parameters_are_cut_short() -> None:
    space = sbo.Space(**{f"x{number}": sbo.Float(0, 1) for number in range(19)})
    study = sbo.Study(space, maximize=True)
    assert "over x0, x1, x2, x3, x4, x5 and 13 more;" in repr(study)
    assert repr(study.ask(1)).endswith(", 13 more)")


def test_names_and_choices_are_text_in_a_notebook() -> None:
    space = sbo.Space(
        **{"<script>": sbo.Categorical(["<b>a</b>", "<b>c</b>"]), "x": sbo.Float(0, 1)}
    )
    study = sbo.Study(space, maximize=True)
    study.tell(study.ask(1).ids, [1.0])
    for page in (study._repr_html_(), study.result._repr_html_()):
        assert "<script>" not in page
        assert "<b>" not in page
        assert "&lt;script&gt;" in page


@pytest.mark.parametrize("value", [None, True, 1, -2, 0.1, 1e-05, 2e16, 0.1234567])
def test_choices_of_two_kinds_never_look_alike(value: object) -> None:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    in_quotes = f'"{text}"'
    space = sbo.Space(c=sbo.Categorical([value, text, "a", in_quotes]), x=sbo.Float(0, 1))
    study = sbo.Study(space, maximize=True)
    study.add_data([{"c": text, "x": 0.5}, {"c": value, "x": 0.5}], [1.0, 0.0])
    labels = space.params["c"].labels([0.0, 1.0, 2.0, 3.0])
    assert labels == [str(value), in_quotes, "a", f'"\\"{text}\\""']
    assert space.params["c"].in_words == f"one of {', '.join(labels)}"
    assert f"c = {in_quotes}, x = 0.5;" in repr(study.result)
    shown = [describe_params({"c": one}) for one in (value, text)]
    assert shown == [f"c = {text}", f"c = {in_quotes}"]
    page = render(study.snapshot())
    assert f'<td class="word">{text}</td>' in page
    assert f'<td class="word">&quot;{text}&quot;</td>' in page


def test_paths_and_samplers_print_no_tensors() -> None:
    X = problems.uniform(30, 2)
    model = sbo.PathwiseGP(X, X[:, :1], solver=sbo.CG())
    paths = model.paths(3)
    assert repr(paths) == "SamplePaths(3 functions of 30 weights of KernelBasis, torch.float64)"
    assert repr(paths.prior).startswith("PriorPaths(3 functions of ")
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    assert (
        repr(sbo.ParallelThompsonSampling(model, box))
        == "ParallelThompsonSampling(models of [30] points, 2 inputs)"
    )
    two = sbo.PathwiseGP(X, X, solver=sbo.CG()).paths(3)
    assert repr(two) == "BatchPaths(3 functions of each posterior of a batch (2,))"


@pytest.mark.parametrize("number", [0.1 + 0.2, 10**30, "a" * 100, "two\nlines", "\udcff"])
def test_a_value_of_any_kind_takes_few_characters(number: object) -> None:
    space = sbo.Space(x=sbo.Categorical([number, 1]))
    study = sbo.Study(space, maximize=True)
    assert len(repr(study.ask(2)).encode()) < 150


def test_texts_of_blanks_are_in_quotes() -> None:
    labels = sbo.Categorical(["", "a", "a ", " "]).labels([0.0, 1.0, 2.0, 3.0])
    assert labels == ['""', "a", '"a "', '" "']
