"""Pools of a study: read part by part, errors with the row."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from scalable_bo import Categorical, Float, Int, Space
from scalable_bo.storage import tables
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
    FRAME.to_csv(tmp_path / "pool.csv", index=False)
    X = SPACE.from_frame(FRAME)
    return {
        "parquet": tmp_path / "pool.parquet",
        "csv": str(tmp_path / "pool.csv"),
        "frame": FRAME,
        "tensor": X,
        "array": X.numpy(),
        "dicts": SPACE.to_dicts(X),
        "stream of arrays": iter(X.split(4)),
        "stream of frames": (FRAME.iloc[i : i + 4] for i in range(0, 23, 4)),
        "stream of dicts": (SPACE.to_dicts(part) for part in X.split(4)),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "parquet",
        "csv",
        "frame",
        "tensor",
        "array",
        "dicts",
        "stream of arrays",
        "stream of frames",
        "stream of dicts",
    ],
)
def test_any_source_gives_the_same_points_and_rows(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROWS_AT_ONCE", 5)
    pool = Pool(SPACE, sources(tmp_path)[kind])
    parts = list(pool)
    U, labels = (torch.cat(columns) for columns in zip(*parts, strict=True))
    X = SPACE.from_frame(FRAME)
    assert torch.equal(labels, torch.cat([X, torch.arange(23.0).unsqueeze(1)], dim=1))
    assert torch.equal(U, SPACE.normalize(X))
    if kind in ("parquet", "frame", "tensor", "array", "dicts"):
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
        (7, TypeError, "`pool` must be a file, a DataFrame, points, dicts, .* got int"),
        (FRAME.drop(columns="k"), ValueError, "must have the columns x, k, kind, got none for k"),
        (torch.zeros(2, 2), ValueError, r"must have shape \(.*, 3\)"),
    ],
)
def test_what_is_no_pool_is_refused_at_once(
    source: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Pool(SPACE, source)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "pool.txt").write_text("x,k\n")
    with pytest.raises(ValueError, match="must end in .parquet or .csv, got pool.txt"):
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
