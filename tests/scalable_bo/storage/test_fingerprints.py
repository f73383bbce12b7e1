"""Files of fingerprints: bits come back part by part, errors have the row."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scalable_bo import FingerprintFile
from surrogates import memory


def bits(num_rows: int, num_bits: int = 64) -> np.ndarray:
    return (np.random.default_rng(0).random((num_rows, num_bits)) < 0.2).astype(np.uint8)


def write(path: Path, rows: list[bytes | None], kind: pa.DataType) -> Path:
    names = [f"molecule {i}" for i in range(len(rows))]
    pq.write_table(pa.table({"bits": pa.array(rows, kind), "name": names}), path)
    return path


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(8)], ids=str)
def test_fingerprints_come_back_from_their_packed_bits(
    kind: pa.DataType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "part_size", lambda *_: 10)
    X = bits(33)
    rows = [row.tobytes() for row in np.packbits(X, axis=1)]
    pool = FingerprintFile(write(tmp_path / "m.parquet", rows, kind), "bits", label="name")
    assert (pool.num_bits, pool.num_rows) == (64, 33)
    for _ in range(2):  # it can be read again
        parts = list(pool)
        assert len(parts) == 4
        assert np.array_equal(np.concatenate([part for part, _ in parts]), X)
        names = [name for _, part in parts if part is not None for name in part]
        assert names[30] == "molecule 30"
    alone = FingerprintFile(tmp_path / "m.parquet", "bits")
    assert all(labels is None for _, labels in alone)


def test_a_file_is_read_again_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "prints.parquet", [b"ab"], pa.binary())
    monkeypatch.chdir(tmp_path)
    file = FingerprintFile("prints.parquet", "bits")
    monkeypatch.chdir("/")
    assert len(list(file)) == 1


def test_a_fingerprint_that_is_missing_or_longer_is_numbered(tmp_path: Path) -> None:
    one = bytes(8)
    for bad, received in ((None, "none"), (bytes(9), "9")):
        path = write(tmp_path / "m.parquet", [one, one, bad], pa.binary())
        with pytest.raises(ValueError, match=f"of 8 bytes, .* got {received} in row 2"):
            list(FingerprintFile(path, "bits"))


def test_a_file_without_fingerprints_is_refused_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "m.parquet", [bytes(8)], pa.binary())
    with pytest.raises(ValueError, match=r"m.parquet must have the column 'fp', got bits, name"):
        FingerprintFile(path, "fp")
    with pytest.raises(ValueError, match="'name' must hold fingerprints .* got string"):
        FingerprintFile(path, "name")
    with pytest.raises(ValueError, match="got no rows"):
        FingerprintFile(write(tmp_path / "e.parquet", [], pa.binary()), "bits")
    with pytest.raises(FileNotFoundError, match=r"`path` must be .*absent.parquet.* not exist"):
        FingerprintFile(tmp_path / "absent.parquet", "bits")
    (tmp_path / "t.parquet").write_text("text")
    with pytest.raises(ValueError, match=r"t.parquet could not be read"):
        FingerprintFile(tmp_path / "t.parquet", "bits")


def test_labels_beside_a_missing_one_stay_as_they_are(tmp_path: Path) -> None:
    ids = [2**53 + 1, None, 2**53 + 3]
    bits = [bytes(8)] * 3
    table = pa.table(
        {"bits": bits, "id": pa.array(ids, pa.int64()), "list": [[1, 2], None, [3, 4]]}
    )
    pq.write_table(table, tmp_path / "m.parquet")
    for label, expected in (("id", ids), ("list", [[1, 2], None, [3, 4]])):
        ((_, labels),) = FingerprintFile(tmp_path / "m.parquet", "bits", label=label)
        assert labels.tolist() == expected


def test_the_padding_of_the_last_byte_is_left_out(tmp_path: Path) -> None:
    X = bits(10, 166)
    rows = [row.tobytes() for row in np.packbits(X, axis=1)]
    path = write(tmp_path / "keys.parquet", rows, pa.binary())
    pool = FingerprintFile(path, "bits", num_bits=166)
    assert pool.num_bits == 166
    ((found, _),) = pool
    assert np.array_equal(found, X)
    for wrong in (160, 169):
        with pytest.raises(ValueError, match=f"between 161 and 168, .* 21 bytes, got {wrong}"):
            FingerprintFile(path, "bits", num_bits=wrong)
    set_beyond = [*rows, rows[0][:-1] + b"\x01"]
    path = write(tmp_path / "more.parquet", set_beyond, pa.binary())
    with pytest.raises(ValueError, match="no bits set beyond `num_bits` = 166, got one in row 10"):
        list(FingerprintFile(path, "bits", num_bits=166))


def test_the_first_fingerprint_that_is_there_tells_the_length(tmp_path: Path) -> None:
    none = [None] * 2**17  # more than are read at a time
    path = write(tmp_path / "m.parquet", [*none, bytes(8)], pa.binary())
    pool = FingerprintFile(path, "bits")
    assert pool.num_bits == 64
    with pytest.raises(ValueError, match=r"of 8 bytes, .* got none in row 0\. Leave the row out"):
        list(pool)
    path = write(tmp_path / "m.parquet", [None, None], pa.binary())
    with pytest.raises(ValueError, match="must hold fingerprints .* got none in any row"):
        FingerprintFile(path, "bits")
