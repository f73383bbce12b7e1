"""The page of a report: its sections, put together as text that holds no script and loads
nothing.
"""

from __future__ import annotations

import base64
import hashlib
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import numpy as np

from scalable_bo._packages import installed_version
from scalable_bo.report import plots
from scalable_bo.report.charts import escape, shorten
from scalable_bo.report.contours import contour_of_mean
from scalable_bo.report.plots import Chart
from scalable_bo.report.snapshot import Snapshot
from scalable_bo.space.goal import Goal
from surrogates.atomic import write_atomically

NUM_BEST_ROWS = 15
NUM_REASONS = 20
NUM_CHOICES = 15
LONGEST_NAME = 60  # characters of a study's name
LONGEST = 400  # characters of a text that comes from outside
_LIBRARIES = ("torch", "gpytorch", "botorch", "numpy")


def write_report(snapshot: Snapshot, path: Path) -> None:
    """Write the page, whole or not at all.

    Raises:
        OSError: if it cannot be written.
    """
    write_atomically(path, render(snapshot).encode())


def render(snapshot: Snapshot) -> str:
    """Return the page."""
    style = files("scalable_bo.report").joinpath("style.css").read_text(encoding="utf-8")
    # Nothing but this very style sheet: no script, no image, no font, no frame, no form.
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    sections = [
        *_of_values(snapshot),
        *_of_asks(snapshot),
        *_of_choices(snapshot),
        *_of_failures(snapshot),
        _configuration(snapshot),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_title(snapshot)}Report of a study</title>\n<style>{style}</style>\n"
        "</head>\n<body>\n<main>\n"
        f"{_head(snapshot)}\n" + "\n".join(sections) + "\n<footer>scalable_bo"
        f" {escape(installed_version())}</footer>\n</main>\n</body>\n</html>\n"
    )


def _title(snapshot: Snapshot) -> str:
    return f"{escape(shorten(snapshot.name, LONGEST_NAME))}: " if snapshot.name else ""


def _head(snapshot: Snapshot) -> str:
    rows = snapshot.rows
    way = "maximised" if snapshot.maximize else "minimised"
    several = snapshot.goal is not None and snapshot.goal.num_objectives > 1
    goal = "several objectives" if several else way
    row = snapshot.best_row
    best = "–" if row is None else f"{rows.values[row].item():.6g}"
    tiles = {
        "best value": best,
        "values": f"{len(rows.observed):,}",
        "failed": f"{len(rows.reasons):,}",
        "pending": f"{len(rows) - rows.num_told:,}",
        "asks": f"{len(snapshot.asks):,}",
    }
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles.items())
    names = shorten(", ".join(snapshot.space.names), 120)
    name = shorten(snapshot.name or "A study", LONGEST_NAME)
    return (
        f'<h1>{escape(name)}, {goal}</h1>\n<p class="note">over {escape(names)}</p>\n<dl'
        f' class="tiles">{cells}</dl>'
    )


def _of_values(snapshot: Snapshot) -> list[str]:
    """Return the sections that need a value."""
    if not snapshot.rows.observed:
        return [_section("Best so far", "", "No finite value has been told yet.")]
    if snapshot.goal is not None and snapshot.goal.num_objectives > 1:
        return _of_front(snapshot, snapshot.goal)
    best = _best_rows(snapshot)
    slices = plots.find_slices(snapshot, int(best[0]))
    names = [found.name for found in slices] or list(snapshot.space.names)
    chart = plots.best_so_far(snapshot)
    sections = [
        _section(
            "Best so far",
            plots.keys([("a value", "blue"), ("best so far", "orange")]) + chart.svg,
            chart.note,
        )
    ]
    sections.append(_section("Best rows", _best_table(snapshot, best)))
    what = (
        "The surrogate's posterior mean along each parameter; all others are as in the best row,"
        " which the upright line marks."
    )
    if slices:
        chart = plots.slices_of_mean(snapshot, slices, int(best[0]))
        if any(setting.startswith("constraint ") for setting in snapshot.settings):
            what += " Constraints are left aside."
        if snapshot.band is not None:
            what += " The band is two standard deviations wide on either side, without the noise."
        sections.append(
            _section("Posterior mean around the best row", chart.svg, f"{what} {chart.note}")
        )
        over_two = contour_of_mean(snapshot, slices, int(best[0]))
        if over_two is not None:
            drawn = plots.keys([("observed", "hollow"), ("best", "orange")]) + over_two.svg
            sections.append(_section("Posterior mean over two parameters", drawn, over_two.note))
    else:
        why = (
            "There is no surrogate yet: all points asked so far are of the initial design."
            if all(ask.refitted is None for ask in snapshot.asks)
            else (
                "The surrogate is not in the folder, or has a kernel of its own: write the report"
                " by `study.report(path)`."
            )
        )
        sections.append(_section("Posterior mean around the best row", "", why))
    chart = plots.parallel_coordinates(snapshot, names)
    lines = plots.keys(
        [
            ("the best", "orange"),
            (f"the next {plots.NUM_BEST_LINES - 1}", "blue"),
            ("others", "faint"),
        ]
    )
    sections.append(_section("Parallel coordinates", lines + chart.svg, chart.note))
    return sections


def _of_front(snapshot: Snapshot, goal: Goal) -> list[str]:
    """Return the section of several objectives: the Pareto front, drawn in the first two."""
    rows = snapshot.rows
    Y = rows.outcomes(len(goal.names))
    front = goal.front(Y).nonzero().flatten()
    front = front[(goal.signs[0] * Y[front, 0]).argsort(descending=True)]
    chart = plots.front_of(snapshot, goal)
    names = [*snapshot.space.names, *snapshot.space.fixed]
    shown = front[:NUM_BEST_ROWS]
    table = [
        (int(row), *(f"{y:.6g}" for y in values))
        + tuple(
            f"{value:.6g}" if isinstance(value, float) else shorten(value, 60)
            for value in (params.get(name, "–") for name in names)
        )
        for row, values, params in zip(
            shown, Y[shown].tolist(), snapshot.space.to_dicts(rows.X[shown]), strict=True
        )
    ]
    heads = ("row", *(shorten(name, 60) for name in (*goal.names, *names)))
    rest = len(front) - len(shown)
    note = f"{rest} more are in `study.result.front`." if rest else ""
    lines = plots.keys([("on the front", "orange"), ("feasible", "blue"), ("others", "faint")])
    return [
        _section("Pareto front", lines + chart.svg, chart.note),
        _section("Points of the front", _table(heads, table, 1 + len(goal.names), "word"), note),
    ]


def _of_asks(snapshot: Snapshot) -> list[str]:
    """Return the sections that need the cost of an ask."""
    if not snapshot.costs:
        return []
    chart: Chart | None = plots.errors(snapshot)
    if chart is None:
        return [
            _section(
                "Error and time of each ask",
                "",
                "All points asked so far are of the initial design, which costs next to nothing.",
            )
        ]
    what = (
        "What the mean and the paths of an ask may be off by at the worst, in posterior standard"
        " deviations, or else the relative residual of its linear systems, as evaluated at the end"
        " of the solve. A gap is an ask of the design."
    )
    missed = sum(cost.converged is False for cost in snapshot.costs.values())
    if missed:
        what += (
            f" In {missed} of {len(snapshot.costs)} asks it missed the solver's tolerance: use"
            " float64, or a solver with a larger budget."
        )
    spent = plots.times(snapshot)
    total = np.sum([plots.seconds(cost) for cost in snapshot.costs.values()], axis=0)
    names = [
        (f"{name} {seconds:.3g} s", style)
        for (name, style), seconds in zip(plots.STEPS, total, strict=True)
    ]
    return [
        _section("Error of each ask", chart.svg, what),
        _section("Time of each ask", plots.keys(names) + spent.svg, spent.note),
    ]


def _of_choices(snapshot: Snapshot) -> list[str]:
    """Return the section of how the latest asks have chosen, if their costs say so."""
    chosen = [
        (ask.number, ask.num_points, ask.num_observed, cost.choice)
        for ask in snapshot.asks
        if (cost := snapshot.costs.get(ask.number)) is not None and cost.choice
    ]
    if not chosen:
        return []
    table = [(*numbers, shorten(choice, LONGEST)) for *numbers, choice in chosen[-NUM_CHOICES:]]
    rest = len(chosen) - len(table)
    note = f"The latest {len(table)}; there are {rest:,} before." if rest else ""
    heads = ("ask", "points", "values", "choice")
    return [_section("How points were chosen", _table(heads, table[::-1], 3, "long"), note)]


def _of_failures(snapshot: Snapshot) -> list[str]:
    reasons = snapshot.rows.reasons
    if not reasons:
        return []
    counts = Counter(reasons.values())
    first = {reason: row for row, reason in reversed(list(reasons.items()))}
    table = [
        (f"{number:,}", first[reason], shorten(reason, LONGEST))
        for reason, number in counts.most_common(NUM_REASONS)
    ]
    rest = len(counts) - len(table)
    note = f"{rest:,} more reasons are in `study.to_dataframe()`." if rest else ""
    return [
        _section(
            "Failures by reason", _table(("rows", "first row", "reason"), table, 2, "long"), note
        )
    ]


def _best_table(snapshot: Snapshot, best: np.ndarray) -> str:
    rows = snapshot.rows
    space = snapshot.space
    points = space.to_dicts(rows.X[best[:NUM_BEST_ROWS]])
    names = [*space.names, *space.fixed]
    table = [
        (
            rank,
            int(row),
            "added" if rows.asks[row] == 0 else int(rows.asks[row]),
            f"{rows.values[row].item():.6g}",
        )
        + tuple(
            f"{value:.6g}" if isinstance(value, float) else shorten(value, 60)
            for value in (params.get(name, "–") for name in names)
        )
        for rank, (row, params) in enumerate(zip(best, points, strict=False), 1)
    ]
    return _table(
        ("", "row", "ask", "value", *(shorten(name, 60) for name in names)), table, 4, "word"
    )


def _configuration(snapshot: Snapshot) -> str:
    solvers = Counter(cost.solver for cost in snapshot.costs.values() if cost.solver)
    found = {name: value for name, value in snapshot.settings.items() if name != "columns"}
    if solvers:
        found["solvers used"] = "; ".join(
            f"{solver} ({number} of {len(snapshot.asks)} asks)"
            for solver, number in solvers.items()
        )
    for source in snapshot.sources:
        found[f"added data {source.name!r}"] = f"{source.num_rows:,} rows"
    found["versions"] = (
        f"scalable_bo {installed_version()}, Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    )
    texts = [
        (escape(shorten(name, LONGEST)), escape(shorten(value, LONGEST)))
        for name, value in found.items()
    ]
    lines = "".join(
        f'<tr><th scope="row" class="long">{name}</th><td class="code">{value}</td></tr>'
        for name, value in texts
    )
    return _section(
        "Configuration", f'<div class="scroll"><table><tbody>{lines}</tbody></table></div>'
    )


def _best_rows(snapshot: Snapshot) -> np.ndarray:
    """Return the rows with a value, the best first."""
    ids = np.array(snapshot.rows.observed)
    values = snapshot.rows.values.numpy()[ids]
    if snapshot.goal is not None:  # what breaks a limit comes last
        Y = snapshot.rows.outcomes(len(snapshot.goal.names))
        broken = ~snapshot.goal.feasible(Y).numpy()[ids]
        return ids[np.lexsort((-values if snapshot.maximize else values, broken))]
    return ids[np.argsort(-values if snapshot.maximize else values, kind="stable")]


def _table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], numbers: int, style: str
) -> str:
    """Return a table whose first ``numbers`` columns are flush right;
    the others have a ``style``.
    """

    def cells(tag: str, row: Sequence[object]) -> str:
        kinds = ["number" if column < numbers else style for column in range(len(row))]
        return "".join(
            f'<{tag} class="{kind}">{escape(cell)}</{tag}>'
            for kind, cell in zip(kinds, row, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', headings)}</tr></thead>"
    return f'<div class="scroll"><table>{head}<tbody>{body}</tbody></table></div>'


def _section(title: str, content: str, note: str = "") -> str:
    words = f'<p class="note">{escape(note.strip())}</p>' if note.strip() else ""
    return f"<section>\n<h2>{escape(title)}</h2>\n{words}{content}\n</section>"
