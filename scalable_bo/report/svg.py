"""Pictures as SVG in HTML, without scripts, styled by the page's classes alone.

Marks stand at shares of their panel, and texts have their own size: the style sheet makes a panel
as wide as there is room. However many marks a picture has, a bounded number is drawn. What is drawn
is text of a document: ``escape`` is the only way that a string gets into it.
"""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Mapping

import numpy as np

from scalable_bo.report.views import MOST_SLICES, Axis, Lines, Marks, Panel, Picture, thin
from scalable_bo.space.quoting import ISOLATED, shorten
from scalable_bo.storage.shown import LONGEST_SHOWN

MOST_MARKS = 800  # in a picture
LONGEST_TICK = 9  # characters that fit between the axes of parallel coordinates


def escape(text: object) -> str:
    """Return text as HTML that shows it as it is, controls but closed isolates by their escapes."""
    whole = str(text)
    kept = {place for pair in ISOLATED.finditer(whole) for place in (pair.start(), pair.end() - 1)}
    shown = (c if c.isprintable() or k in kept else ascii(c)[1:-1] for k, c in enumerate(whole))
    return html.escape("".join(shown))


def remark(text: str) -> str:
    """Return a text as a note; nothing for an empty one."""
    return f'<p class="note">{escape(text.strip())}</p>' if text.strip() else ""


def scrolling(content: str, label: str = "Table") -> str:
    """Return content that scrolls sideways where it does not fit, by the keyboard, too."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{label}">{content}</div>'


def draw(picture: Picture) -> str:
    """Return a picture's key, its panels beside each other where there is room, and its note."""
    named = [mark for panel in picture.panels for mark in panel.marks if mark.name]
    keys = {mark.name: "rule" if mark.kind == "rule" else mark.colour for mark in named}
    limit = MOST_MARKS // max(1, len(picture.panels))
    counts = {len(m.x): most for p in picture.panels for m in p.marks if (most := _most(m, limit))}
    notes = [picture.note] if picture.note else []
    notes += [f"{most} of {count} marks are drawn." for count, most in counts.items()]
    panels = "".join(_panel(panel, limit) for panel in picture.panels)
    many = " many" if len(picture.panels) > 1 else ""
    return f'{_keys(keys)}<div class="panels{many}">{panels}</div>{remark(" ".join(notes))}'


def draw_lines(lines: Lines) -> str:
    """Return parallel coordinates, which scroll sideways to keep axes 66 pixels apart."""
    count = len(lines.axes) - 1
    places = lines.places
    drawn = "".join(
        _polyline(np.arange(count + 1) / count, line, colour)
        for line, colour in reversed(list(zip(places, lines.colours, strict=True)))
    )
    turned = max(len(axis.title) for axis in lines.axes) > LONGEST_TICK
    axes = "".join(_upright(axis, k / count, turned) for k, axis in enumerate(lines.axes))
    keys = _keys({"the best": "orange", "the next": "blue", "others": "faint"})
    plot = (
        f'<div class="fit"><svg width="{66 * (count + 1) + 150 * turned}" height="0"></svg>'
        f'<svg class="plot lines{" turned" * turned}" role="img" aria-label="Rows across all axes">'
        f"{_stretched(drawn)}{axes}</svg></div>"
    )
    return f"{keys}{scrolling(plot, 'Parallel coordinates')}{remark(lines.note)}"


def draw_shares(shares: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table of the parameters that matter most, with a bar for each outcome's share."""
    names = list(next(iter(shares.values())))[:MOST_SLICES]
    head = "".join(f'<th scope="col">{escape(shorten(of, LONGEST_SHOWN))}</th>' for of in shares)
    body = ""
    for name in names:
        cells = "".join(
            f'<td class="share"><svg class="share" aria-hidden="true"><rect class="blue"'
            f' width="{100 * of[name]:.2f}%" height="100%"></rect></svg> {of[name]:.2f}</td>'
            for of in shares.values()
        )
        shown = escape(shorten(name, LONGEST_SHOWN))
        body += f'<tr><th scope="row" class="long">{shown}</th>{cells}</tr>'
    count = len(next(iter(shares.values())))
    is_part = count > len(names)
    said = f"The {len(names)} of {count} parameters that matter most." if is_part else ""
    table = (
        f'<table><thead><tr><th scope="col">parameter</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
    return scrolling(table, "Importances") + remark(said)


def ticks(axis: Axis, *, upright: bool = False) -> list[tuple[float, str]]:
    """Return a few round values with their labels, so few that these do not overlap in a panel on a
    telephone: letters of 7 pixels along 240 or, ``upright``, lines of 16 pixels along 190.
    """
    room = 190.0 if upright else 240.0
    found: list[tuple[float, str]] = []
    for found in _candidates(axis):
        sizes = np.array([16.0 if upright else 7.0 * (1 + len(label)) for _, label in found])
        places = axis.place([value for value, _ in found])
        if (np.diff(places) * room >= 0.5 * (sizes[1:] + sizes[:-1])).all():
            return found
    return found[:1]


def _candidates(axis: Axis) -> list[list[tuple[float, str]]]:
    """Return sets of ticks, the densest first."""
    if axis.kind == "category":
        whole = [(float(number), label) for number, label in enumerate(axis.labels)]
        return [whole[::every] for every in range(1, len(whole) + 1)]
    found = []
    if axis.kind == "log":
        first, last = math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high))
        for factors, step in [((1, 2, 5), 1), *(((1,), n) for n in range(1, last - first + 1))]:
            powers = [10.0**power for power in range(first, last + 1, step)]
            values = [factor * power for power in powers for factor in factors]
            found.append([(v, _number(v, 6)) for v in values if axis.low <= v <= axis.high])
        found = [few for few in found if 2 <= len(few) <= 12]
    return found + [_linear_ticks(axis, count) for count in (5, 4, 3, 2, 1)]


def _linear_ticks(axis: Axis, count: int) -> list[tuple[float, str]]:
    least = max((axis.high - axis.low) / count, sys.float_info.min)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10, 20) if factor * power >= least)
    first = math.ceil(axis.low / step)
    inside = [step * number for number in range(first, math.floor(axis.high / step) + 1)]
    digits = math.ceil(math.log10(max(*map(abs, inside), step) / step)) + 2 if inside else 3
    return [(v, "0" if abs(v) < 1e-6 * step else _number(v, digits)) for v in inside]


def _number(value: float, digits: int) -> str:
    """Return a number for an axis, short: 1e-5 rather than 1e-05, and 20000 rather than 2e+04."""
    is_whole = 1 <= abs(value) < 1e6 and value == round(value)
    written = f"{value:.0f}" if is_whole else f"{value:.{digits}g}"
    mantissa, e, exponent = written.partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


def _keys(names: Mapping[str, str]) -> str:
    items = (f'<li><i class="{colour}"></i>{escape(name)}</li>' for name, colour in names.items())
    return f'<ul class="keys">{"".join(items)}</ul>' if names else ""


def _most(marks: Marks, limit: int) -> int:
    """Return how many marks are drawn where there are too many, for example bars that would be less
    than two pixels wide on a telephone; 0 where all are drawn.
    """
    most = {"points": limit, "line": limit, "bars": 120}.get(marks.kind, len(marks.x))
    return most if len(marks.x) > most else 0


def _panel(panel: Panel, limit: int) -> str:
    parts = [_axes(panel)]
    for marks in panel.marks:
        kept = thin(len(marks.x), _most(marks, limit) or len(marks.x))
        parts.append(_DRAWN[marks.kind](panel, marks, kept))
    about = panel.title or panel.x.title
    label = escape(f"{panel.y.title} by {about}")
    title = f"<figcaption>{escape(panel.title)}</figcaption>" if panel.title else ""
    choices = ""
    if panel.x.kind == "category":
        items = (f'<li title="{escape(one)}">{escape(one)}</li>' for one in panel.x.labels)
        choices = f'<ol class="choices" aria-hidden="true">{"".join(items)}</ol>'
    return (
        f'<figure>{title}<svg class="plot" role="img" aria-label="{label}">{"".join(parts)}</svg>'
        f"{choices}</figure>"
    )


def _axes(panel: Panel) -> str:
    parts = []
    for value, label in ticks(panel.y, upright=True):
        up = _share(1 - panel.y.place(value))
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{up}" y2="{up}"></line>')
        parts.append(_text(shorten(label, LONGEST_TICK), "-8", up, "tick end", dy=4, title=label))
    for value, label in ticks(panel.x) if panel.x.kind != "category" else ():
        across = _share(panel.x.place(value))
        parts.append(f'<line class="grid" x1="{across}" x2="{across}" y1="0" y2="100%"></line>')
        parts.append(_text(label, across, "100%", "tick middle", dy=17))
    parts.append('<line class="axis" x1="0" x2="100%" y1="100%" y2="100%"></line>')
    if not panel.title:
        parts.append(_text(shorten(panel.x.title, 40), "50%", "100%", "label middle", dy=36))
    parts.append(_text(shorten(panel.y.title, 40), "-54", "0", "label", dy=-10))
    return "".join(parts)


def _upright(axis: Axis, across: float, turned: bool) -> str:
    x = _share(across)
    name = escape(shorten(axis.title, 27))
    style = 'class="name" transform="rotate(-30)"' if turned else 'class="name middle"'
    parts = [
        f'<line class="axis" x1="{x}" x2="{x}" y1="0" y2="100%"></line>'
        f'<svg x="{x}"><text {style} y="-14">{name}<title>{escape(axis.title)}</title></text></svg>'
    ]
    for value, label in ticks(axis, upright=True):
        up = _share(1 - axis.place(value))
        parts.append(
            _text(shorten(label, LONGEST_TICK), x, up, "tick halo", dx=5, dy=4, title=label)
        )
    return "".join(parts)


def _points(panel: Panel, marks: Marks, kept: np.ndarray) -> str:
    x = panel.x.place(marks.x[kept])
    y = panel.y.place(marks.y[kept])
    texts = [""] * len(kept) if marks.texts is None else marks.texts(kept)
    return "".join(
        f'<circle class="{marks.colour}" cx="{_share(a)}" cy="{_share(1 - b)}" r="3.5">'
        f"{f'<title>{escape(shorten(text, LONGEST_SHOWN))}</title>' if text else ''}</circle>"
        for a, b, text in zip(x, y, texts, strict=True)
        if 0 <= a <= 1 and 0 <= b <= 1
    )


def _line(panel: Panel, marks: Marks, kept: np.ndarray) -> str:
    x, y = panel.x.place(marks.x[kept]), panel.y.place(marks.y[kept])
    if marks.kind == "steps":
        x, y = np.append(np.repeat(x, 2)[1:], 1.0), np.repeat(y, 2)
        turns = np.diff(y) != 0
        corners = np.flatnonzero(np.append(True, turns) | np.append(turns, True))
        corners = corners[thin(len(corners), MOST_MARKS)]
        x, y = x[corners], y[corners]
    return _stretched(_polyline(x, y, marks.colour))


def _band(panel: Panel, marks: Marks, kept: np.ndarray) -> str:
    x, low, high = panel.x.place(marks.x), panel.y.place(marks.low), panel.y.place(marks.high)
    if panel.x.kind == "category":
        return "".join(
            f'<line class="whisker" x1="{_share(a)}" x2="{_share(a)}" y1="{_share(1 - b)}"'
            f' y2="{_share(1 - c)}"></line>'
            for a, b, c in zip(x, low, high, strict=True)
        )
    return _stretched(_polyline(np.append(x, x[::-1]), np.append(low, high[::-1]), "band"))


def _rule(panel: Panel, marks: Marks, kept: np.ndarray) -> str:
    across = [_share(panel.x.place(x)) for x in marks.x]
    up = [_share(1 - panel.y.place(y)) for y in marks.y]
    ends = [f'x1="{x}" x2="{x}" y1="0" y2="100%"' for x in across]
    ends += [f'x1="0" x2="100%" y1="{y}" y2="{y}"' for y in up]
    return "".join(f'<line class="mark {marks.colour}" {end}></line>' for end in ends)


def _cells(panel: Panel, marks: Marks, kept: np.ndarray, num_levels: int = 10) -> str:
    """Fill an area for each run of cells of one level in a row."""
    known = marks.z[np.isfinite(marks.z)]
    low, high = (known.min(), known.max()) if len(known) else (0.0, 0.0)
    levels = num_levels * (marks.z - low) / (high - low or 1.0)
    levels = np.nan_to_num(np.minimum(np.floor(levels), num_levels - 1), nan=-1.0).astype(int)
    across, up = _edges(panel.x.place(marks.x)), _edges(panel.y.place(marks.y))
    parts = []
    for row, of_row in enumerate(levels):
        ends = np.append(np.flatnonzero(np.diff(of_row)) + 1, len(of_row))
        for start, end in zip(np.append(0, ends), ends, strict=False):
            if of_row[start] >= 0:
                opacity = (of_row[start] + 0.5) / num_levels
                parts.append(
                    f'<rect class="level" x="{_share(across[start])}" y="{_share(1 - up[row + 1])}"'
                    f' width="{_share(across[end] - across[start])}"'
                    f' height="{_share(up[row + 1] - up[row])}"'
                    f' fill-opacity="{opacity:.2f}"></rect>'
                )
    return "".join(parts)


def _bars(panel: Panel, marks: Marks, kept: np.ndarray) -> str:
    width = 0.76 * float(np.diff(panel.x.place(marks.x[kept])).min(initial=0.5))
    lefts = panel.x.place(marks.x[kept]) - width / 2
    low = marks.low[kept]
    bottoms, tops = panel.y.place(low), panel.y.place(low + marks.y[kept])
    texts = [""] * len(kept) if marks.texts is None else marks.texts(kept)
    return "".join(
        f'<rect class="{marks.colour}" x="{_share(left)}" y="{_share(1 - top)}"'
        f' width="{_share(width)}" height="{_share(top - bottom)}"><title>{escape(text)}</title>'
        "</rect>"
        for left, bottom, top, text in zip(lefts, bottoms, tops, texts, strict=True)
        if top > bottom
    )


_DRAWN = {
    "points": _points, "line": _line, "steps": _line, "band": _band, "rule": _rule,
    "cells": _cells, "bars": _bars,
}  # fmt: skip


def _text(
    content: str, x: str, y: str, style: str, *, dx: int = 0, dy: int = 0, title: str = ""
) -> str:
    """Return a text; its ``title`` comes up under a pointer, where it is not all of it."""
    tip = f"<title>{escape(title)}</title>" if title and title != content else ""
    shift = (f' dx="{dx}"' if dx else "") + (f' dy="{dy}"' if dy else "")
    return f'<text class="{style}" x="{x}" y="{y}"{shift}>{escape(content)}{tip}</text>'


def _polyline(x: np.ndarray, y: np.ndarray, style: str) -> str:
    points = " ".join(f"{1000 * a:.1f},{1000 * (1 - b):.1f}" for a, b in zip(x, y, strict=True))
    return f'<polyline class="{style}" points="{points}"></polyline>'


def _stretched(content: str) -> str:
    """Return what is drawn in thousandths of its panel, whose shape it takes."""
    return f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none">{content}</svg>'


def _share(place: float | np.ndarray) -> str:
    return f"{100 * float(place):.2f}%"


def _edges(places: np.ndarray) -> np.ndarray:
    """Return the edges of cells about places in [0, 1], from 0 to 1."""
    return np.concatenate([[0.0], (places[1:] + places[:-1]) / 2, [1.0]])
