"""Arguments of a kind that nothing is made for are refused by their names, whatever they are."""

import decimal
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from scalable_bo.serving.client import RemoteStudy
from scalable_bo.serving.server import Server
from scalable_bo.space.space import Float, Space
from scalable_bo.study.study import Study

SPACE = Space(x=Float(0.0, 1.0))


class Hostile:
    """Raises from all that Python asks of it."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("no iterator")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")


nested: list[Any] = []
for _ in range(5000):
    nested = [nested]
WRONG = {
    "a list of bytes": [b"bytes"],
    "a list of None": [None],
    "a meta tensor": torch.zeros(2, device="meta"),
    "a sparse tensor": torch.zeros(2, 2).to_sparse(),
    "a matrix": torch.zeros(2, 3),
    "a large int": 10**400,
    "a list of a large int": [10**400],
    "a Decimal": decimal.Decimal("sNaN"),
    "a time": np.datetime64("2020-01-01"),
    "an array of text": np.array("x"),
    "a table": pd.DataFrame({"x": [1]}),
    "missing": pd.NA,
    "a surrogate": "a\udcff",
    "a kind": float,
    "nested": nested,
    "hostile": Hostile(),
    "a list of hostile": [Hostile()],
}


def made() -> Study:
    study = Study(SPACE, maximize=True, num_initial=100)
    study.tell(study.ask(3).ids[:1], [1.0])
    return study


CALLS: dict[str, Callable[[Any, RemoteStudy], object]] = {
    "`low`": lambda wrong, remote: Float(wrong, 1.0),
    "`log`": lambda wrong, remote: Float(1.0, 2.0, log=wrong),
    "`y`": lambda wrong, remote: Space(y=wrong),
    "`maximize`": lambda wrong, remote: Study(SPACE, maximize=wrong),
    "`storage`": lambda wrong, remote: Study(SPACE, maximize=True, storage=wrong),
    "`objective`": lambda wrong, remote: made().optimize(wrong, rounds=1, batch=1),
    "`q`": lambda wrong, remote: made().ask(wrong),
    "`ids` of tell": lambda wrong, remote: made().tell(wrong, [1.0]),
    "`noise`": lambda wrong, remote: made().tell([1], [1.0], noise=wrong),
    "`reasons`": lambda wrong, remote: made().tell([1], [math.nan], reasons=wrong),
    "`ids` of points": lambda wrong, remote: made().points(wrong),
    "`ids` of reasons": lambda wrong, remote: made().reasons(wrong),
    "`batch`": lambda wrong, remote: made().sheet(wrong),
    "`text`": lambda wrong, remote: made().note(0, wrong),
    "`why`": lambda wrong, remote: made().withdraw([0], why=wrong),
    "`why` of correct": lambda wrong, remote: made().correct(0, 2.0, why=wrong),
    "`name`": lambda wrong, remote: made().add_data([{"x": 0.5}], [1.0], name=wrong),
    "`ids` of a server": lambda wrong, remote: remote.tell(wrong, [1.0]),
    "`values` of a server": lambda wrong, remote: remote.tell([0, 1, 2, 3, 4], wrong),
    "`noise` of a server": lambda wrong, remote: remote.tell([0], [1.0], noise=wrong),
    "`reasons` of a server": lambda wrong, remote: remote.tell([0], [1.0], reasons=wrong),
    "`ids` to renew": lambda wrong, remote: remote.renew(wrong),
    "`ids` to release": lambda wrong, remote: remote.release(wrong),
    "`q` of a server": lambda wrong, remote: remote.ask(wrong),
    "`patience`": lambda wrong, remote: RemoteStudy(
        "http://127.0.0.1:9", token="x", patience=wrong
    ),
}
# What is right after all: a text, a variance that is not known, a long time, an unknown point
TAKEN = {
    *((call, "a surrogate") for call in ("`text`", "`why`", "`why` of correct", "`name`")),
    ("`objective`", "a kind"),
    ("`noise` of a server", "a list of None"),
    ("`patience`", "a large int"),
    ("`ids` of reasons", "a list of a large int"),
}


@pytest.fixture(scope="module")
def remote() -> Iterator[RemoteStudy]:
    with (
        Study(SPACE, maximize=True, num_initial=100) as study,
        Server(study) as server,
        RemoteStudy(server.url, token=server.token, patience=5.0) as found,
    ):
        yield found


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("call", CALLS)
def test_an_argument_of_a_wrong_kind_is_refused_by_its_name(
    call: str, kind: str, remote: RemoteStudy
) -> None:
    if (call, kind) in TAKEN:
        pytest.skip("it is right")
    if kind == "nested" and call in ("`noise` of a server", "`q` of a server"):
        pytest.skip("JSON nests no deeper than Python")
    name = call.split("`")[1].removesuffix("s")
    with pytest.raises((TypeError, ValueError), match=f"`.*{name}|`body`|no .*rows? |point 0"):
        CALLS[call](WRONG[kind], remote)


def test_a_list_that_holds_itself_is_no_value() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(
        ValueError, match=r"The value of point 1 must be one number, got \[\[...\]\]"
    ):
        made().tell([1], [endless])
