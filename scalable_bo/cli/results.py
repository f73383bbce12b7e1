"""The lines that ``tell`` reads. Quick to import."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
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
    try:
        line = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Line {number} must be JSON, got {content[:80]!r}.") from error
    if not isinstance(line, dict) or type(line.get("id")) is not int:
        raise ValueError(
            f"Line {number} must be an object with an `id`, a whole number, got {content[:80]!r}."
        )
    if unknown := sorted(set(line) - {"id", "value", "error", "noise"}):
        raise ValueError(
            f"Line {number} must have `id`, `value` or `error`, and `noise`, got"
            f" `{unknown[0]:.80}`."
        )
    if ("value" in line) == ("error" in line):
        raise ValueError(
            f"Line {number} must have either `value` or `error`, got {content[:80]!r}."
        )
    return {
        "id": line["id"],
        "value": _read_value(line.get("value", math.nan)),
        "noise": line.get("noise"),
        "error": str(line["error"])[:500] if "error" in line else None,
    }


def _read_value(value: Any) -> Any:
    """Return a value with numbers in place of the texts of numbers."""
    if isinstance(value, dict):
        return {name: _read_value(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_read_value(one) for one in value]
    with suppress(ValueError):
        return float(value) if isinstance(value, str) else value
    return value
