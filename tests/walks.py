"""Follow a call through our own code: which files it enters, and how deep its calls go."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
OWN = tuple(f"{ROOT / package}/" for package in ("surrogates", "acquisition", "scalable_bo"))


@dataclass(frozen=True)
class Walk:
    """What a call went through.

    Attributes:
        files: our files that were entered, relative to the project's root.
        deepest: the deepest stack of our own calls, as "file:function", outermost first.
    """

    files: tuple[str, ...]
    deepest: tuple[str, ...]

    @property
    def depth(self) -> int:
        return len(self.deepest)

    def __str__(self) -> str:
        files = "\n  ".join(self.files)
        calls = "\n  ".join(self.deepest)
        return f"{len(self.files)} files:\n  {files}\n{self.depth} calls deep:\n  {calls}"


def walk(call: Callable[[], object]) -> Walk:
    """Return the walk of ``call()`` in this thread."""
    files: set[str] = set()
    stack: list[str | None] = []
    deepest: list[str] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal deepest
        if event == "call":
            name = frame.f_code.co_filename
            own = name.startswith(OWN)
            stack.append(f"{Path(name).relative_to(ROOT)}:{frame.f_code.co_name}" if own else None)
            if own:
                files.add(str(Path(name).relative_to(ROOT)))
                calls = [place for place in stack if place is not None]
                if len(calls) > len(deepest):
                    deepest = calls
        elif event == "return" and stack:
            stack.pop()

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return Walk(tuple(sorted(files)), tuple(deepest))
