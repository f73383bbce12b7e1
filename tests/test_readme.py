"""The README's examples run as they are pasted."""

import re
import warnings
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_there_is_an_example_for_each_use() -> None:
    assert len(EXAMPLES) == 4


@pytest.mark.parametrize(
    "example", EXAMPLES, ids=[f"example{number}" for number in range(1, len(EXAMPLES) + 1)]
)
def test_an_example_runs(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        # What a user sees; other packages' warnings are not the example's
        warnings.simplefilter("default")
        exec(compile(example, str(README), "exec"), {"__name__": "example"})
    assert not list(tmp_path.iterdir()), "an example leaves files behind"
