"""Small charts as SVG: scales, panels with axes, and marks, styled by the page's classes alone.

What is drawn is text of a document: ``escape`` is the only way that a string gets into it.
"""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

LARGEST = 1e300  # beyond, the width of an axis could overflow
WIDTH = 900.0  # of a chart that is as wide as the page
_WIDTH_OF_A_CHARACTER = 6.8  # of a tick's label
_NUMBER_OF_TICKS = 5


def escape(text: object) -> str:
    """Return text that is shown as it is, whatever it holds: markup, quotes,
    and control characters by their escapes.
    """
    return html.escape(
        "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
    )


def shorten(text: object, length: int) -> str:
    """Cut a text to so many characters."""
    whole = str(text)
    return whole if len(whole) <= length else whole[: length - 1] + "…"


@dataclass(frozen=True)
class Scale:
    """An interval that is mapped to [0, 1]: an axis.

    Attributes:
        low: mapped to 0.
        high: mapped to 1, above ``low``.
        log: by the logarithm; needs ``low`` > 0.
        labels: of the positions 0, 1, … of choices, in place of numbers.
    """

    low: float
    high: float
    log: bool = False
    labels: Sequence[str] = ()

    @classmethod
    def around(cls, values: np.ndarray, *, log: bool = False, margin: float = 0.05) -> Scale:
        """Return a scale that holds all values, at least one, with some room."""
        limit = math.log10(LARGEST) if log else LARGEST
        numbers = np.clip(np.log10(values) if log else values, -limit, limit)
        low = float(numbers.min())
        high = float(numbers.max())
        alike = high - low <= 1e-9 * max(abs(low), abs(high))
        room = (0.3 if log else 0.1 * abs(low) or 0.1) if alike else margin * (high - low)
        low = max(low - room, -limit - 1)
        high = min(high + room, limit * 1.1 if not log else limit + 1)
        return cls(10**low, 10**high, True) if log else cls(low, high)

    def place(self, values: np.ndarray | float) -> np.ndarray:
        """Return where values lie, 0 at ``low`` and 1 at ``high``."""
        numbers = np.clip(np.asarray(values, dtype=np.float64), -LARGEST, LARGEST)
        if self.log:
            return np.asarray(
                (np.log(numbers) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
            )
        return np.asarray((numbers - self.low) / (self.high - self.low))

    def ticks(self) -> list[tuple[float, str]]:
        """Return a few round values with their labels."""
        if self.labels:
            every = math.ceil(len(self.labels) / 8)
            return [(float(number), label) for number, label in enumerate(self.labels)][::every]
        if self.log and len(powers := self._powers()) > 1:
            return [(value, _number(value, 6)) for value in powers]
        step = _round_step((self.high - self.low) / _NUMBER_OF_TICKS)
        first = math.ceil(self.low / step)
        inside = [step * number for number in range(first, math.floor(self.high / step) + 1)]
        digits = math.ceil(math.log10(max(*map(abs, inside), step) / step)) + 2 if inside else 3
        return [
            (value, "0" if abs(value) < 1e-6 * step else _number(value, digits)) for value in inside
        ]

    def tick(self, label: str, width: float, x: float, y: float, style: str) -> str:
        """Return a label as a text; a choice is cut to this width, and whole under a pointer."""
        room = max(int(width / _WIDTH_OF_A_CHARACTER), 4) if self.labels else len(label)
        shown = shorten(label, room)
        return text(shown, x, y, style, label if shown != label else "")

    def _powers(self) -> list[float]:
        """Return powers of ten, and over few of them also twice and five times those."""
        first = math.floor(math.log10(self.low))
        last = math.ceil(math.log10(self.high))
        factors = (1, 2, 5) if last - first <= 3 else (1,)
        step = math.ceil((last - first) / _NUMBER_OF_TICKS)
        values = [
            factor * 10.0**power for power in range(first, last + 1, step) for factor in factors
        ]
        return [value for value in values if self.low <= value <= self.high]


@dataclass
class Panel:
    """One chart with axes, in a box of an SVG.

    Attributes:
        x: the horizontal scale.
        y: the vertical scale.
        left: where the box begins, in the SVG's units, as ``top``, ``width`` and ``height``.
    """

    x: Scale
    y: Scale
    left: float
    top: float
    width: float
    height: float
    parts: list[str] = field(default_factory=list)

    def axes(self, x_label: str = "", y_label: str = "", *, y_ticks: bool = True) -> None:
        """Draw the grid, the ticks and the titles of both axes."""
        bottom = self.top + self.height
        right = self.left + self.width
        for value, label in self.y.ticks():
            (height,) = self._down([value])
            self.parts.append(_line("grid", self.left, height, right, height))
            if y_ticks:
                tick = self.y.tick(label, self.left - 6, self.left - 6, height + 4, "tick end")
                self.parts.append(tick)
        ticks = self.x.ticks()
        for value, label in ticks:
            (across,) = self._across([value])
            self.parts.append(_line("grid", across, bottom, across, bottom + 4))
            room = self.width / len(ticks)
            self.parts.append(self.x.tick(label, room, across, bottom + 17, "tick middle"))
        self.parts.append(_line("axis", self.left, bottom, right, bottom))
        if x_label:
            self.parts.append(
                text(x_label, self.left + self.width / 2, bottom + 36, "label middle")
            )
        if y_label:
            self.parts.append(text(y_label, self.left, self.top - 10, "label"))

    def line(
        self, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, style: str
    ) -> None:
        """Draw a line through points."""
        points = " ".join(
            f"{a:.1f},{b:.1f}" for a, b in zip(self._across(x), self._down(y), strict=True)
        )
        self.parts.append(f'<polyline class="{style}" points="{points}"/>')

    def dots(
        self,
        x: Sequence[float] | np.ndarray,
        y: Sequence[float] | np.ndarray,
        style: str,
        titles: Sequence[str] = (),
        radius: float = 3,
    ) -> None:
        """Draw dots, each with a title that a pointer brings up."""
        shown = [f"<title>{escape(title)}</title>" for title in titles] or [""] * len(x)
        for a, b, title in zip(self._across(x), self._down(y), shown, strict=True):
            self.parts.append(
                f'<circle class="{style}" cx="{a:.1f}" cy="{b:.1f}" r="{radius:g}">{title}</circle>'
            )

    def bar(self, x: tuple[float, float], y: tuple[float, float], style: str, title: str) -> None:
        """Draw a bar between two horizontal and two vertical values."""
        left, right = self._across(x)
        bottom, top = self._down(y)
        box = f'x="{left:.2f}" y="{top:.2f}" width="{right - left:.2f}" height="{bottom - top:.2f}"'
        self.parts.append(f'<rect class="{style}" {box}><title>{escape(title)}</title></rect>')

    def area(
        self, x: tuple[float, float], y: tuple[float, float], style: str, opacity: float
    ) -> None:
        """Fill what lies between two horizontal and two vertical values."""
        left, right = self._across(x)
        bottom, top = self._down(y)
        box = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}"'
        self.parts.append(f'<rect class="{style}" {box} fill-opacity="{opacity:.2f}"/>')

    def upright(self, x: float, style: str) -> None:
        """Draw an upright line over the whole height."""
        (across,) = self._across([x])
        self.parts.append(_line(style, across, self.top, across, self.top + self.height))

    def _across(self, x: Sequence[float] | np.ndarray) -> np.ndarray:
        return self.left + self.width * self.x.place(np.asarray(x))

    def _down(self, y: Sequence[float] | np.ndarray) -> np.ndarray:
        return self.top + self.height * (1 - self.y.place(np.asarray(y)).clip(0, 1))


def text(
    content: object, x: float, y: float, style: str, title: str = "", slant: float = 0.0
) -> str:
    """Return a text; its ``title`` comes up under a pointer. It rises by ``slant`` degrees."""
    tip = f"<title>{escape(title)}</title>" if title else ""
    turn = f' transform="rotate({-slant:g} {x:.1f} {y:.1f})"' if slant else ""
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}"{turn}>{escape(content)}{tip}</text>'


def figure(parts: Sequence[str], width: float, height: float, description: str) -> str:
    """Return an SVG of parts, as wide as the page; one that is wider, or on a narrow page,
    scrolls.
    """
    label = escape(description)
    size = f' class="wide" width="{width:g}" height="{height:g}"' if width > WIDTH else ""
    drawing = (
        f'<svg viewBox="0 0 {width:g} {height:g}"{size} role="img"'
        f' aria-label="{label}">{"".join(parts)}</svg>'
    )
    return f'<div class="scroll">{drawing}</div>'


def _round_step(least: float) -> float:
    """Return the smallest of 1, 2, 2.5 and 5 times a power of ten that is not below ``least``."""
    least = max(least, sys.float_info.min)
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10, 20) if factor * power >= least)


def _number(value: float, digits: int) -> str:
    """Return a number for an axis, short: 1e-5 rather than 1e-05, and 20000 rather than 2e+04."""
    written = (
        f"{value:.0f}" if 1 <= abs(value) < 1e6 and value == round(value) else f"{value:.{digits}g}"
    )
    mantissa, e, exponent = written.partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


def _line(style: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
