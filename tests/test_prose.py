"""README, pages and change log avoid words that a reader stumbles over. `make lint` runs this."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
# Patterns, and what to write instead
AVOIDED = {
    r"those (that|which|who)\b": "name the thing",
    r"(?<=[.|] )what (needs|is not|has|falls|follows)\b": "begin with a noun",
    r"\bwild values?": "outliers",
    r"\b(anew|at need|in vain|for want of|as ever|besides|whereof)\b": "say it in plain words",
    r"\b(goes|go|went|going) on\b": "continue",
    r"\b(is|are) said\b|\b(was|were|is|are) at it\b": "say who does it",
    r"\b(simply|obviously|basically|clearly|utili[sz]e|leverage)\b": "leave it out",
    r"scalable-bo\[": "install from a clone: '.[extra]'",
    r"\b(amongst|whilst|thus|hence)\b": "so",
    r"\b([a-z]+) \1\b": "a word twice",
}


def prose(text: str) -> str:
    """Return a text, line by line, without code and the targets of links."""
    text = re.sub(r"```.*?```", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "`…`", text)
    return re.sub(r"\]\([^)\n]*\)", "]", text)


def test_pages_avoid_words_that_readers_stumble_over() -> None:
    found = [
        f"{page.relative_to(ROOT)}:{number}: {hit[0]!r}: {instead}"
        for page in PAGES
        for number, line in enumerate(prose(page.read_text(encoding="utf-8")).splitlines(), 1)
        for pattern, instead in AVOIDED.items()
        if (hit := re.search(pattern, line, flags=re.IGNORECASE))
    ]
    assert not found, "\n".join(found)
