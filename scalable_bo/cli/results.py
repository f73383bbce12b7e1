"""The lines that ``tell`` reads. Quick to import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any


def read_results(source: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file, or of standard input, each with ``id``, ``value``, ``noise`` and
    ``error``.

    Raises:
        ValueError: for what is no such line.
    """
    from scalable_bo.evaluation.evaluator import MOST_BYTES

    if source != "-" and not Path(source).is_file():
        raise ValueError(
            f"`results` must be a file of JSON lines, or - for standard input, and {source} is not"
            " there."
        )
    with nullcontext(sys.stdin.buffer) if source == "-" else open(source, "rb") as lines:
        for number, content in enumerate(iter(lambda: lines.readline(MOST_BYTES + 1), b""), 1):
            if len(content) > MOST_BYTES:
                raise ValueError(f"Line {number} must have at most {MOST_BYTES} bytes.")
            if content.strip():
                yield _read_result(content, number)


def _read_result(content: bytes, number: int) -> dict[str, Any]:
    from scalable_bo.evaluation.external import read_answer_line

    try:
        line = read_answer_line(content)
    except ValueError as error:
        raise ValueError(f"Line {number} {error}.") from error
    if unknown := sorted(set(line) - {"id", "value", "error", "noise"}):
        raise ValueError(
            f"Line {number} must have `id`, `value` or `error`, and `noise`, got"
            f" `{unknown[0]:.80}`."
        )
    return {"noise": None} | line
