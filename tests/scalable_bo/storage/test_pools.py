"""Pools of a study: read part by part, errors with the row."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from acquisition.constraints import TooFewPoints
from scalable_bo import Categorical, Float, Int, Space
from scalable_bo.storage.pools import Pool

SPACE = Space(x=Float(0.0, 10.0), k=Int(1, 5), kind=Categorical(["a", "b"]))
FRAME = pd.DataFrame(
    {
        "x": np.linspace(0, 10, 23),
        "k": np.arange(23) % 5 + 1,
        "kind": ["ab"[i % 2] for i in range(23)],
        "name": [f"row {i}" for i in range(23)],
    }
)


def sources(tmp_path: Path) -> dict[str, Any]:
    FRAME.to_parquet(tmp_path / "pool.parquet", row_group_size=6)
    FRAME.to_csv(tmp_path / "pool.CSV", index=False)
    X = SPACE.from_frame(FRAME)
    first, second = tmp_path / "first.parquet", tmp_path / "second.PARQUET"
    FRAME.iloc[:9].to_parquet(first)
    FRAME.iloc[9:].to_parquet(second)
    return {
        "parquet": tmp_path / "pool.parquet",
        "csv": str(tmp_path / "pool.CSV"),
        "frame": FRAME,
        "tensor": X,
        "array": X.numpy(),
        "dicts": SPACE.to_dicts(X),
        "stream of arrays": iter(X.split(4)),
        "stream of frames": (FRAME.iloc[i : i + 4] for i in range(0, 23, 4)),
        "stream of dicts": (SPACE.to_dicts(part) for part in X.split(4)),
        "stream of single dicts": iter(SPACE.to_dicts(X)),
        "list of frames": [FRAME.iloc[:9], FRAME.iloc[9:]],
        "list of files": [first, second],
    }


def test_any_source_gives_the_same_points_and_rows(tmp_path: Path) -> None:
    X = SPACE.from_frame(FRAME)
    for kind, source in sources(tmp_path).items():
        pool = Pool(SPACE, source, rows_at_once=5, dicts_at_once=5)
        parts = list(pool)
        U, labels = (torch.cat(columns) for columns in zip(*parts, strict=True))
        assert torch.equal(labels, torch.cat([X, torch.arange(23.0).unsqueeze(1)], dim=1)), kind
        assert torch.equal(U, SPACE.normalize(X))
        if "stream" not in kind and kind != "csv":
            assert pool.num_rows == 23
        if "stream" in kind or kind == "parquet":
            assert len(parts) > 4


def test_rows_that_break_a_constraint_are_left_out() -> None:
    space = Space(lambda p: p["x"] + p["y"] <= 1.0, x=Float(0.0, 1.0), y=Float(0.0, 1.0))
    X = torch.tensor([[0.1, 0.2], [0.9, 0.9], [0.5, 0.4]], dtype=torch.float64)
    ((U, labels),) = Pool(space, X)
    assert labels[:, 2].tolist() == [0.0, 2.0]
    assert torch.equal(labels[:, :2], X[[0, 2]])
    assert len(U) == 2


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (7, TypeError, "`pool` must be the path .*, a DataFrame, points .* dicts .* got int"),
        (FRAME.drop(columns="k"), ValueError, "must have the columns x, k, kind, got none for k"),
        (torch.zeros(2, 2), ValueError, r"must have shape \(.*, 3\)"),
        (np.zeros(3), ValueError, r"`pool` must have shape \(c, 3\), .* got \(3,\)\. Give"),
    ],
)
def test_what_is_no_pool_is_refused_at_once(
    source: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Pool(SPACE, source)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "pool.txt").write_text("x,k\n")
    with pytest.raises(ValueError, match="must end in .parquet, .csv or .xlsx, got pool.txt"):
        Pool(SPACE, tmp_path / "pool.txt")
    (tmp_path / "pool.parquet").write_text("x,k\n")
    with pytest.raises(ValueError, match=r"pool.parquet could not be read"):
        Pool(SPACE, tmp_path / "pool.parquet")


@pytest.mark.parametrize("name", ["absent.csv", "absent.parquet", "absent"])
def test_a_file_that_is_not_there_is_named_with_what_to_check(tmp_path: Path, name: str) -> None:
    expected = (
        rf"`pool` must be the path of a file, got '.*{name}', which does not exist\. Check the path"
    )
    for source in (tmp_path / name, str(tmp_path / name)):
        with pytest.raises(FileNotFoundError, match=expected):
            Pool(SPACE, source)
    FRAME.to_csv(tmp_path / "there.csv", index=False)
    with pytest.raises(FileNotFoundError, match=expected):  # before the first is read
        Pool(SPACE, [tmp_path / "there.csv", tmp_path / name])
    stream = Pool(SPACE, iter([tmp_path / "there.csv", tmp_path / name]))
    with pytest.raises(FileNotFoundError, match=expected):
        list(stream)


def test_a_folder_is_no_pool(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="which is a folder"):
        Pool(SPACE, tmp_path)


def test_a_bad_row_of_a_later_part_is_numbered() -> None:
    def stream() -> Iterator[pd.DataFrame]:
        yield FRAME
        yield FRAME.assign(k=[1, 2, 9, *[1] * 20])

    with pytest.raises(ValueError, match=r"`k` must be .* got .*9.* in row 25"):
        list(Pool(SPACE, stream()))


def test_a_bad_dict_or_array_of_a_later_part_is_numbered() -> None:
    dicts = [{"x": 1.0, "k": 1, "kind": "a"} for _ in range(9)]
    with pytest.raises(ValueError, match=r"`k` must be .* got 9.0 in row 9"):
        list(Pool(SPACE, iter([*dicts, {"x": 1.0, "k": 9, "kind": "a"}]), dicts_at_once=4))
    with pytest.raises(ValueError, match=r"exactly the parameters .* in row 9"):
        list(Pool(SPACE, iter([*dicts, {"x": 1.0}]), dicts_at_once=4))
    bad = np.array([[1.0, 1.0, 0.0], [1.0, 9.0, 0.0]])
    with pytest.raises(ValueError, match=r"`k` must be .* in row 3"):
        list(Pool(SPACE, iter([bad[[0, 0]], bad])))


def test_one_dict_is_one_point() -> None:
    ((_, labels),) = Pool(SPACE, {"x": 1.0, "k": 2, "kind": "b"})
    assert labels.tolist() == [[1.0, 2.0, 1.0, 0.0]]


ACCEPTED = "`pool` must be the path of a Parquet or CSV file, a DataFrame, .* got"
POINT = [1.0, 2.0, 0.0]


def test_what_holds_no_points_is_refused_with_what_is_accepted() -> None:
    for source, message in (
        ({"x": [0.1, 0.2], "k": [1, 2], "kind": ["a", "b"]}, f"{ACCEPTED} dict. Of a dict of col"),
        ([POINT, POINT], f"{ACCEPTED} float in a list. Make points a 2-D array"),
        (iter([POINT]), f"{ACCEPTED} float in a list"),
        (FRAME["x"], f"{ACCEPTED} float in a Series"),
        (b"pool.parquet", f"{ACCEPTED} bytes"),
        ([b"pool.parquet"], f"{ACCEPTED} bytes in a list"),
        (FRAME.groupby("kind"), f"{ACCEPTED} tuple in a DataFrameGroupBy. Take the points alone"),
        ([(np.zeros((2, 3)), ["a", "b"])], f"{ACCEPTED} tuple in a list. Take the points alone"),
        (pa.table({"x": [1.0]}), rf"{ACCEPTED} Table. Call its `to_pandas\(\)`"),
        ([[["pool.csv"]]], f"{ACCEPTED} str in a list"),
        (np.zeros((2, 3), dtype=object), "dense arrays of real numbers, got object"),
        (torch.zeros(2, 3).to_sparse(), "dense arrays of real numbers, got torch.sparse_coo"),
    ):
        with pytest.raises(TypeError, match=message):
            Pool(SPACE, source)


def test_what_is_in_memory_is_read_whole_at_once() -> None:
    bad = FRAME.assign(x=[*FRAME["x"][:-1], np.nan])
    for source in (bad, [FRAME, bad]):
        with pytest.raises(ValueError, match="`x` must be .*nan"):
            Pool(SPACE, source, rows_at_once=5)
    stream = Pool(SPACE, iter([FRAME, bad]), rows_at_once=5)  # of which only the first part is read
    assert stream.num_read == 5
    with pytest.raises(ValueError, match="in row 45"):
        list(stream)


@pytest.mark.parametrize("kind", ["frame", "dicts", "parquet", "csv", "stream of frames"])
def test_too_few_rows_are_counted_without_losing_any(kind: str, tmp_path: Path) -> None:
    pool = Pool(SPACE, sources(tmp_path)[kind])
    pool.require(0)
    pool.require(23)
    with pytest.raises(TooFewPoints, match="at least 24 feasible rows, got 23. Add candidates"):
        pool.require(24)
    assert sum(len(U) for U, _ in pool) == 23


def test_a_stream_is_read_only_as_far_as_it_must_be() -> None:
    read = []

    def stream() -> Iterator[pd.DataFrame]:
        for start in range(0, 20, 4):
            read.append(start)
            yield FRAME.iloc[start : start + 4]

    Pool(SPACE, stream()).require(7)
    assert read == [0, 4]


def test_an_empty_pool_has_no_rows(tmp_path: Path) -> None:
    FRAME.iloc[:0].to_parquet(tmp_path / "empty.parquet")
    FRAME.iloc[:0].to_csv(tmp_path / "empty.csv", index=False)
    files = [tmp_path / "empty.parquet", tmp_path / "empty.csv"]
    for source in ([], FRAME.iloc[:0], iter(()), np.zeros((0, 3)), iter([FRAME.iloc[:0]]), *files):
        with pytest.raises(TooFewPoints, match="at least 1 feasible rows, got 0. Add candidates"):
            Pool(SPACE, source).require(1)


def test_rows_that_break_a_constraint_are_counted() -> None:
    space = Space(lambda p: p["x"] < 0.2, x=Float(0.0, 1.0))
    X = torch.linspace(0.1, 1.0, 10, dtype=torch.float64).unsqueeze(1)
    pool = Pool(space, iter(X.split(3)))
    with pytest.raises(TooFewPoints, match="got 10, of which 9 break a constraint of the space"):
        pool.require(2)
