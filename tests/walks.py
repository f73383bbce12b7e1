"""Follow a call through our own code: which files it enters, how often it moves between them, and
how deep its calls go.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
OWN = tuple(f"{ROOT / package}/" for package in ("surrogates", "acquisition", "scalable_bo"))


@dataclass(frozen=True)
class Walk:
    """What a call went through.

    Attributes:
        files: our files that were entered, relative to the project's root.
        moves: how often a call led from one of them to another.
        deepest: the deepest stack of our own calls, as "file:function", outermost first.
    """

    files: tuple[str, ...]
    moves: int
    deepest: tuple[str, ...]

    @property
    def depth(self) -> int:
        return len(self.deepest)

    def __str__(self) -> str:
        files = "\n  ".join(self.files)
        calls = "\n  ".join(self.deepest)
        counts = f"{len(self.files)} files, {self.moves} moves between them"
        return f"{counts}:\n  {files}\n{self.depth} calls deep:\n  {calls}"


def walk(call: Callable[[], object]) -> Walk:
    """Return the walk of ``call()`` in this thread."""
    entered: set[CodeType] = set()
    stack: list[CodeType | None] = []
    depth = 0
    moves = 0
    last = ""
    deepest: list[CodeType] = []
    is_own = cache(lambda code: code.co_filename.startswith(OWN))

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal deepest, depth, last, moves
        if event == "call":
            code = frame.f_code
            own = is_own(code)
            stack.append(code if own else None)
            if own:
                entered.add(code)
                depth += 1
                moves += code.co_filename != last and last != ""
                last = code.co_filename
                if depth > len(deepest):
                    deepest = [place for place in stack if place is not None]
        elif event == "return" and stack and stack.pop() is not None:
            depth -= 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return Walk(
        tuple(sorted({_file(code) for code in entered})),
        moves,
        tuple(f"{_file(code)}:{code.co_name}" for code in deepest),
    )


def _file(code: CodeType) -> str:
    return str(Path(code.co_filename).relative_to(ROOT))
