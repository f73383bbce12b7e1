"""Files of fingerprints: bits come back part by part, errors have the row."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scalable_bo import FingerprintFile
from scalable_bo.storage import fingerprints


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
    monkeypatch.setattr(fingerprints, "FINGERPRINTS_AT_ONCE", 10)
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
