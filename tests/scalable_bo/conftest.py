"""What the tests of the benchmarks share."""

from pathlib import Path

import pytest

from tests.scalable_bo.toy_regression import write_toy_folder


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A folder with the data set `toy`."""
    folder = tmp_path / "data"
    folder.mkdir()
    write_toy_folder(folder)
    return folder
