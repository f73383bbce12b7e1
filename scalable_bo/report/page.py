"""The page of a report: its sections, as one text that holds no script and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import numpy as np

from scalable_bo._packages import installed_version
from scalable_bo.evaluation.evaluator import MAX_REASON
from scalable_bo.report import views
from scalable_bo.report.snapshot import Snapshot
from scalable_bo.report.svg import draw, draw_lines, draw_shares, escape, remark, scrolling
from scalable_bo.report.views import outcome_name
from scalable_bo.space.cell_texts import distinct
from scalable_bo.space.parameters import Parameter
from scalable_bo.space.quoting import ISOLATES, legible, shorten
from scalable_bo.storage.shown import LONGEST_SHOWN, describe_excess, describe_params, short_value
from surrogates.atomic import write_atomically

NUM_ROWS = 15  # of a table
# The settings that say how the surrogate is computed
MACHINERY = ("solver", "kernel", "computed in")
_LIBRARIES = ("torch", "gpytorch", "botorch", "numpy")


def write_report(snapshot: Snapshot, path: Path) -> None:
    """Write the page, whole or not at all; raise OSError if it cannot be written."""
    write_atomically(path, render(snapshot).encode())


def render(snapshot: Snapshot) -> str:
    """Return the page."""
    style = files("scalable_bo.report").joinpath("style.css").read_text(encoding="utf-8")
    # Nothing but this very style sheet: no script, no image, no font, no frame, no form.
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    name = f"{escape(shorten(snapshot.name, LONGEST_SHOWN))}: " if snapshot.name else ""
    sections = [
        _of_pending(snapshot),
        *_of_values(snapshot),
        *_of_failures(snapshot),
        _of_settings(snapshot),
        _diagnostics(snapshot),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}Report of a study</title>\n<style>{style}</style>\n"
        "</head>\n<body>\n<main>\n"
        f"{_head(snapshot)}\n" + "\n".join(sections) + "\n<footer>scalable_bo"
        f" {escape(installed_version())}</footer>\n</main>\n</body>\n</html>\n"
    )


def _head(snapshot: Snapshot) -> str:
    rows = snapshot.rows
    way = "maximised" if snapshot.maximize else "minimised"
    if snapshot.wanted.num_objectives > 1:
        way = snapshot.wanted.directions
    tiles = {
        **found_so_far(snapshot),
        "values": f"{len(rows.observed):,}",
        "failed": f"{len(rows.reasons):,}",
        "pending": f"{len(rows) - rows.num_told:,}",
        "asks": f"{len(snapshot.asks):,}",
    }
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles.items())
    names = remark(f"over {shorten(', '.join(snapshot.space.names), 120)}")
    name = shorten(snapshot.name or "A study", LONGEST_SHOWN)
    return f'<h1>{escape(name)}, {escape(way)}</h1>\n{names}\n<dl class="tiles">{cells}</dl>'


def found_so_far(snapshot: Snapshot) -> dict[str, str]:
    """Return the best value in figures or, of several objectives, what there is of a front."""
    goal = snapshot.wanted
    row = snapshot.shown_row
    if row is not None and not snapshot.feasible.any():
        return {"feasible": "none"}
    if goal.num_objectives == 1:
        return {"best value": "–" if row is None else f"{snapshot.rows.values[row].item():.6g}"}
    Y = snapshot.allowed[snapshot.rows.observed]
    corner = goal.reference_point(Y)
    return {
        "on the front": f"{int(goal.front(Y).sum()):,}",
        "hypervolume": "–" if corner is None else f"{goal.hypervolume(Y, corner):.4g}",
    }


def _of_pending(snapshot: Snapshot) -> str:
    rows = snapshot.rows
    ids = (~rows.told).nonzero().flatten()
    heading = "What to evaluate next"
    if not len(ids):
        how = "Ask for the next points by `study.ask(q)` or `scalable-bo ask`."
        return _section(heading, "", f"No point is pending. {how}")
    shown = ids[:NUM_ROWS]
    Y = snapshot.outcomes[shown]
    curves = [belief.curve(rows.X[shown]) for belief in snapshot.beliefs]
    columns = {
        f"{outcome_name(snapshot, j)}, predicted": [
            short_value(told) + ", told"
            if not np.isnan(told)
            else f"{mean:.4g}" + (f" ({low:.4g} to {high:.4g})" if high > low else "")
            for told, mean, low, high in zip(
                Y[:, j].tolist(), *(part.tolist() for part in curve), strict=True
            )
        ]
        for j, curve in enumerate(curves)
    }
    if snapshot.success is not None:
        chances = snapshot.success.probability(rows.X[shown]).tolist()
        columns["chance of success"] = [f"{chance:.2f}" for chance in chances]
    rest = len(ids) - len(shown)
    note = (
        "These points wait for their values. Beside them are the predicted mean and the band of two"
        " standard deviations around it."
        if curves
        else "These points wait for their values."
    ) + f" {rest:,} more are in `study.pending`." * bool(rest)
    return _section(heading, _rows_table(snapshot, shown.numpy(), columns), note)


def _of_values(snapshot: Snapshot) -> list[str]:
    row = snapshot.shown_row
    if row is None:
        return [_section("Best point", "", "No finite value has been told yet.")]
    progress = views.history(snapshot)
    sections = [*_of_best(snapshot, row), _section(progress.title, draw(progress))]
    if not snapshot.beliefs:
        why = "There is no surrogate before two values."
        if len(snapshot.rows.observed) > 1:
            why = (
                "The folder does not hold the surrogate, or the kernel is your own. Write the"
                " report by `study.report(path)`."
            )
        sections.append(_section("Prediction", "", why))
    else:
        sections += [_of_outcome(snapshot, j) for j in range(snapshot.wanted.num_objectives)]
        shares = {
            outcome_name(snapshot, j): belief.importances
            for j, belief in enumerate(snapshot.beliefs)
        }
        what = "The share of each parameter in the variation of the predicted mean over the space."
        sections.append(_section("Importances", draw_shares(shares), what))
    lines = views.lines(snapshot)
    sections.append(_section("Parallel coordinates", draw_lines(lines)))
    return sections + _of_limits(snapshot)


def _of_best(snapshot: Snapshot, row: int) -> list[str]:
    """Return the sections of the best point or, of several objectives, of the front; where no point
    is feasible, of the one that comes nearest.
    """
    rows = snapshot.rows
    goal = snapshot.wanted
    params = describe_params(snapshot.space.to_dicts(rows.X[[row]])[0], ISOLATES)
    best = snapshot.ranked
    if not snapshot.feasible.any():
        excess = goal.excess(snapshot.outcomes[[row]])[0].tolist()
        broken = {name: by for name, by in zip(goal.names, excess, strict=True) if by > 0}
        note = f"No point is feasible. The nearest is row {row}: it {describe_excess(broken)}."
        return [_section("Least violating point", _rows_table(snapshot, np.array([row])), note)]
    if goal.num_objectives > 1:
        front = best[goal.front(snapshot.allowed).numpy()[best]]
        corner = goal.reference_point(snapshot.allowed[rows.observed])
        assert corner is not None  # of a front
        names = dict(zip(goal.objectives, corner.tolist(), strict=True))
        rest = len(front) - NUM_ROWS
        note = f"The reference point of the hypervolume is {describe_params(names, ISOLATES)}."
        note += f" {rest} more are in `study.result.front`." * (rest > 0)
        return [
            _section("Pareto front", draw(views.front(snapshot))),
            _section("Points of the front", _rows_table(snapshot, front[:NUM_ROWS]), note),
        ]
    note = f"Row {row}, {short_value(rows.values[row].item())} at {params}."
    if snapshot.beliefs:
        mean, low, high = (float(part) for part in snapshot.beliefs[0].curve(rows.X[[row]]))
        note += f" The predicted mean there is {mean:.4g}"
        note += f", with a band from {low:.4g} to {high:.4g}." if high > low else "."
    if row != best[0]:  # by what a model says
        side = "at the worse end of its band" if high > low else "by its mean"
        note += f" Values are noisy: {side} this row is the best."
    return [_section("Best point", _rows_table(snapshot, best[:NUM_ROWS]), note)]


def _of_outcome(snapshot: Snapshot, outcome: int) -> str:
    name = outcome_name(snapshot, outcome)
    what = (
        f"The predicted mean along each parameter, while the others have the values of row"
        f" {snapshot.shown_row}, which the vertical line marks."
    )
    if any(setting.startswith("constraint ") for setting in snapshot.settings):
        what += " Constraints are not shown."
    what += " The band is two standard deviations wide on either side, without the noise."
    content = draw(views.slices(snapshot, outcome))
    surface = views.contour(snapshot, outcome)
    if surface is not None:
        content += "<h3>Over two parameters</h3>" + draw(surface)
    title = "Prediction" if snapshot.goal is None else f"Prediction of {name}"
    return _section(title, content, what)


def _of_limits(snapshot: Snapshot) -> list[str]:
    goal = snapshot.wanted
    if not goal.constraints:
        return []
    Y = snapshot.outcomes[snapshot.rows.observed]
    kept = (goal.excess(Y) == 0).sum(0).tolist()
    words = goal.describe()
    table = [
        (f"{kept[goal.names.index(name)]:,} of {len(Y):,}", words[f"outcome `{name}`"])
        for name in goal.constraints
    ]
    others = range(goal.num_objectives, len(goal.names)) if snapshot.beliefs else ()
    return [
        _section("Limits on outcomes", _table(("rows that keep it", "limit"), table, 1, "word")),
        *(_of_outcome(snapshot, outcome) for outcome in others),
    ]


def _diagnostics(snapshot: Snapshot) -> str:
    solvers = Counter(cost.solver for cost in snapshot.costs.values() if cost.solver)
    found = {name: snapshot.settings[name] for name in MACHINERY if name in snapshot.settings}
    if solvers:
        found["solvers used"] = "; ".join(
            f"{solver} ({number} of {len(snapshot.asks)} asks)"
            for solver, number in solvers.items()
        )
    found["versions"] = (
        f"scalable_bo {installed_version()}, Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in _LIBRARIES)
    )
    content = "".join([*_of_asks(snapshot), *_of_choices(snapshot), _pairs(found.items())])
    return f"<section>\n<details><summary>Diagnostics</summary>{content}</details>\n</section>"


def _of_asks(snapshot: Snapshot) -> list[str]:
    if not snapshot.costs:
        return []
    errors = views.errors(snapshot)
    if errors is None:
        what = "All points so far are from the initial design, which takes almost no time."
        return [_part("Error and time of each ask", "", what)]
    what = (
        "The largest error of the mean and the paths of an ask, in posterior standard deviations."
        " If it is not known, the relative residual of the linear systems, as evaluated at the end"
        " of the solve."
    )
    missed = sum(cost.converged is False for cost in snapshot.costs.values())
    if missed:
        what += (
            f" In {missed} of {len(snapshot.costs)} asks it missed the solver's tolerance: use"
            " float64, or a solver with a larger budget."
        )
    total = np.sum([views.seconds(cost) for cost in snapshot.costs.values()], axis=0)
    spent = ", ".join(
        f"{name} {part:.3g} s" for (name, _), part in zip(views.STEPS, total, strict=True)
    )
    return [
        _part("Error of each ask", draw(errors), what),
        _part("Time of each ask", draw(views.times(snapshot)), f"In all: {spent}."),
    ]


def _of_choices(snapshot: Snapshot) -> list[str]:
    chosen = [
        (ask.number, ask.num_points, ask.num_observed, cost.choice)
        for ask in snapshot.asks
        if (cost := snapshot.costs.get(ask.number)) is not None and cost.choice
    ]
    if not chosen:
        return []
    table = [(*numbers, shorten(choice, MAX_REASON)) for *numbers, choice in chosen[-NUM_ROWS:]]
    rest = len(chosen) - len(table)
    note = f"The latest {len(table)}; there are {rest:,} before." if rest else ""
    heads = ("ask", "points", "values", "choice")
    return [_part("How points were chosen", _table(heads, table[::-1], 3, "long"), note)]


def failures_by_reason(snapshot: Snapshot) -> list[tuple[int, int, str]]:
    """Return the most frequent reasons of failures, each after the number and first of its rows."""
    reasons = snapshot.rows.reasons
    first = {reason: row for row, reason in reversed(list(reasons.items()))}
    return [
        (number, first[reason], shorten(reason, MAX_REASON))
        for reason, number in Counter(reasons.values()).most_common(NUM_ROWS)
    ]


def _of_failures(snapshot: Snapshot) -> list[str]:
    reasons = snapshot.rows.reasons
    if not reasons:
        return []
    table = [(f"{number:,}", *others) for number, *others in failures_by_reason(snapshot)]
    rest = len(set(reasons.values())) - len(table)
    note = f"{rest:,} more reasons are in `study.to_dataframe()`." if rest else ""
    shown = _table(("rows", "first row", "reason"), table, 2, "long")
    return [_section("Failures by reason", shown, note)]


def _rows_table(
    snapshot: Snapshot, shown: np.ndarray, predicted: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Return a table of rows: their asks, their outcomes, their parameters and notes; of pending
    ones what is ``predicted`` behind the parameters, in place of the outcomes.
    """
    rows = snapshot.rows
    space = snapshot.space
    values = snapshot.outcomes[shown].T.tolist() if predicted is None else []
    told = [
        (name, list(map(short_value, of)))
        for name, of in zip(snapshot.wanted.names, values, strict=False)
    ]
    names = [*space.names, *space.fixed]
    points = space.to_dicts(rows.X[shown])
    params = [[short_value(point.get(name, "–")) for point in points] for name in names]
    asks = ["added" if ask == 0 else int(ask) for ask in rows.asks[shown]]
    notes = [rows.notes.get(row, "") for row in shown.tolist()]
    before = [("row", shown.tolist()), ("ask", asks), *told]
    behind = [*(predicted or {}).items(), *([("note", notes)] if any(notes) else [])]
    heads = distinct([name for name, _ in before + behind], names)
    heads[len(before) : len(before)] = names
    cells = [*(of for _, of in before), *params, *(of for _, of in behind)]
    shortened = [shorten(name, LONGEST_SHOWN) for name in heads]
    return _table(shortened, list(zip(*cells, strict=True)), len(before), "word")


def _of_settings(snapshot: Snapshot) -> str:
    space = snapshot.space
    found = [(name, _in_words(param)) for name, param in space.params.items()]
    found += [(name, f"{legible(value)}, fixed") for name, value in space.fixed.items()]
    left_out = ("columns", "parameter ", "fixed ", "objective ", "outcome ", *MACHINERY)
    if (goal := snapshot.goal) is not None:
        found.append(("goal", goal.directions))
        found += [(name, goal.describe()[f"outcome `{name}`"]) for name in goal.constraints]
    found += [one for one in snapshot.settings.items() if not one[0].startswith(left_out)]
    found += [(f"added data {one.name!r}", f"{one.num_rows:,} rows") for one in snapshot.sources]
    return _section("Settings", _pairs(found))


def _in_words(param: Parameter) -> str:
    text = param.in_words
    for other, wanted in (param.active_if or {}).items():
        values = [wanted] if isinstance(wanted, str) or not isinstance(wanted, Sequence) else wanted
        text += f", where {other} is {' or '.join(map(legible, values))}"
    return text


def _pairs(texts: Iterable[tuple[str, str]]) -> str:
    lines = "".join(
        f'<tr><th scope="row" class="long">{escape(shorten(name, MAX_REASON))}</th>'
        f'<td class="long">{escape(shorten(text, MAX_REASON))}</td></tr>'
        for name, text in texts
    )
    return scrolling(f"<table><tbody>{lines}</tbody></table>")


def _table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], numbers: int, style: str
) -> str:
    """Return a table; the first ``numbers`` columns are flush right, others have a ``style``."""

    def cells(tag: str, row: Sequence[object]) -> str:
        kinds = ["number" if column < numbers else style for column in range(len(row))]
        scope = ' scope="col"' if tag == "th" else ""
        return "".join(
            f'<{tag} class="{kind}"{scope}>{escape(cell)}</{tag}>'
            for kind, cell in zip(kinds, row, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', headings)}</tr></thead>"
    return scrolling(f"<table>{head}<tbody>{body}</tbody></table>")


def _section(title: str, content: str, note: str = "") -> str:
    return f"<section>\n{_part(title, content, note, 'h2')}\n</section>"


def _part(title: str, content: str, note: str = "", level: str = "h3") -> str:
    return f"<{level}>{escape(title)}</{level}>\n{remark(note)}{content}"
