"""A log of writes leads to what its writes lead to one by one, also after it was bytes."""

import math
from copy import deepcopy
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from scalable_bo.storage.log import digest_of, pack, replay, unpack
from scalable_bo.storage.rounds import AskReport
from scalable_bo.storage.rows import Outcomes, Rows
from scalable_bo.storage.storage import Ask, Change, Contents, Source, Write
from tests import problems

NAMES = ("a", "b")
NAN = math.nan


def points(count: int) -> Tensor:
    return problems.uniform(count, 3, seed=count)


def several(*values: Any) -> Outcomes:
    return Outcomes.several(values, None, NAMES)


WRITES = [
    Write("add_source", (Source("old", "abc", 0, 2), points(2), several((1.0, 2.0), NAN), 0)),
    Write("add_queued", (points(4),)),
    Write("add_ask", (Ask(1, 3, 1, 3, None), AskReport(), 2, points(3), 0)),
    Write("add_outcomes", ([4, 2], several((NAN, 1e-300), (5.0, -0.0)), 2)),
    Write("add_ask", (Ask(2, 1, 1, 3, True), AskReport(0.1, 0.2, 0.3, 1e-3), 5, points(2), 1)),
    Write("add_outcomes", ([4], several((7.0, 1e-300)), 4)),
    Write("add_outcomes", ([3], several("no"), 5)),
    Write("remove_outcomes", ([3],)),
    Write("add_outcomes", ([3, 5], several((8.0, 9.0), (NAN, 1 / 3)), 6)),
    Write(
        "replace_outcomes",
        (
            [2],
            several((6.0, 6.0)),
            8,
            [Ask(1, 3, 0, 3, None), Ask(2, 1, 1, 3, True)],
            [Change("2026-01-01T00:00:00+00:00", "corrected", 2, 5.0, None, None, "ö\udcff")],
        ),
    ),
    Write("add_outcomes", ([5], several((0.5, 1 / 3)), 9)),
]


def one_by_one(writes: list[Write]) -> Contents:
    contents = Contents.empty(3)
    for write in writes:
        write.apply(contents)
    return contents


def exactly(contents: Contents) -> bytes:
    return pack(Write("adopt", (contents,)))


def test_a_log_leads_to_what_its_writes_lead_to_one_by_one() -> None:
    for number in range(len(WRITES) + 1):
        expected = one_by_one(WRITES[:number])
        assert exactly(replay(WRITES[:number], 3)) == exactly(expected)
    assert expected.rows.observed == [0, 4, 3, 2, 5]


def test_writes_come_back_from_bytes() -> None:
    writes = [unpack(pack(write)) for write in WRITES]
    assert exactly(one_by_one(writes)) == exactly(one_by_one(WRITES))
    assert [pack(write) for write in writes] == [pack(write) for write in WRITES]


def test_a_log_goes_on_from_contents_that_were_adopted() -> None:
    for number in range(len(WRITES) + 1):
        content = exactly(one_by_one(WRITES[:number]))
        assert exactly(replay([unpack(content), *WRITES[number:]], 3)) == exactly(
            one_by_one(WRITES)
        )


def test_writes_of_before_their_json_was_a_tensor_are_read() -> None:
    older = []
    for write in WRITES:
        tensors = load(pack(write))
        text = tensors.pop("write").numpy().tobytes().decode()
        older.append(unpack(save(tensors, {"write": text})))
    assert exactly(one_by_one(older)) == exactly(one_by_one(WRITES))


def test_a_write_holds_more_text_than_a_header_of_safetensors() -> None:
    reasons = dict.fromkeys(range(110), "no" * 500_000)
    nothing = points(1)[:, 0].expand(len(reasons)) * NAN
    outcomes = Outcomes(nothing, nothing, reasons)
    found = unpack(pack(Write("add_outcomes", (range(len(reasons)), outcomes, 0)))).arguments[1]
    assert found.reasons == reasons


def test_a_digest_is_of_the_content_and_of_where_it_stands() -> None:
    content = pack(WRITES[0])
    assert len({digest_of("", content), digest_of("a", content), digest_of("", b"a")}) == 3


def test_rows_grow_one_by_one_and_what_was_taken_of_them_stays() -> None:
    X = points(40)
    rows = Rows(3)
    for k in range(40):
        before = rows.X
        rows.append(X[k : k + 1], k, float(k))
        rows.record([k], several((float(k), -1.0)))
        assert torch.equal(before, X[:k])
    at_once = Rows(3)
    at_once.append(X, torch.arange(40))
    at_once.record(range(40), several(*((float(k), -1.0) for k in range(40))))
    at_once.times[:, 0] = torch.arange(40)
    assert str(vars(rows)) == str(vars(at_once))
    copy = deepcopy(rows)
    copy.append(X[:2], 41)
    copy.record([40], several((1.0, 2.0)))
    rows.append(X[2:4], 41)
    assert rows.values[40:].isnan().all()
    assert torch.equal(rows.X, torch.cat([X, X[2:4]]))
    assert torch.equal(copy.X, torch.cat([X, X[:2]]))
    assert copy.outcomes(2)[40].tolist() == [1.0, 2.0]


def test_rows_that_were_added_in_inference_mode_are_told_outside_of_it() -> None:
    with torch.inference_mode():
        rows = Rows(3)
        rows.append(points(2), 1)
        rows.record([0], several((1.0, 2.0)))
    rows.record([1], several((3.0, 4.0)))
    rows.append(points(1), 2)
    rows.record([2], several((5.0, 6.0)))
    assert rows.outcomes(2).tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
