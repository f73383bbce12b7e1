"""What the records of a league come to: medians over seeds, ranks, and how often an optimiser keeps
up with its best peer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import rankdata

from acquisition.strategies import STRATEGIES
from scalable_bo.experiments.records import Record

# Of a problem's range: regrets below are as good as none
SOLVED = 1e-4
KEPT_UP = 1.2  # times the best peer's regret
FAR_AHEAD = 1.0 / 3.0


@dataclass(frozen=True)
class Division:
    """Runs that can be compared: one budget, size of batches and noise, and on each problem the
    seeds that all its optimisers have.

    Attributes:
        medians: the regrets' medians over seeds, by problem and optimiser.
        zeros: by problem, what is taken off a run's regrets: 0 but where the optimum is not known,
            and the best value of all runs stands for it.
        solved: by problem, the regret below which it counts as solved.
        records: behind them.
        apart: the problems whose optimisers share no seed, which are left out.
    """

    budget: int
    q: int
    noise: float
    medians: dict[str, dict[str, float]]
    zeros: dict[str, float]
    solved: dict[str, float]
    records: Sequence[Record]
    apart: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What the runs have in common."""
        batches = "one by one" if self.q == 1 else f"in batches of {self.q}"
        noise = f", noise {self.noise:g} of the interquartile range" if self.noise else ""
        return f"{self.budget} evaluations {batches}{noise}"

    @property
    def optimisers(self) -> tuple[str, ...]:
        """Those that have runs here, in the order of their first appearance."""
        return tuple(dict.fromkeys(r["settings"]["optimiser"] for r in self.records))

    def num_seeds(self, problem: str) -> int:
        """Return how many runs are behind each median of a problem."""
        own = [record["settings"] for record in self.records]
        return len({settings["seed"] for settings in own if settings["problem"] == problem})


@dataclass(frozen=True)
class Standing:
    """How an optimiser did in a division.

    Attributes:
        mean_rank: over problems, 1 the best; ties share a rank.
        num_problems: that it ran on.
        kept_up: of these, how often its median regret was at most 1.2 times that of the best peer,
            or the problem was solved. Peers are all that is not ours, but for itself and Sobol
            points.
        far_ahead: how often it was below a third of it.
        behind_sobol: how often it was worse than Sobol points.
        seconds_ask: processor seconds: median over runs of the median ask.
        peak_bytes: the largest peak of a run, the process's own included.
    """

    optimiser: str
    mean_rank: float
    num_problems: int
    kept_up: int
    far_ahead: int
    behind_sobol: int
    seconds_ask: float
    peak_bytes: int


def divisions(records: Sequence[Record]) -> list[Division]:
    """Return the divisions of complete records, the smallest budgets and batches first."""
    groups: dict[tuple[float, int, int], list[Record]] = {}
    for record in records:
        settings = record["settings"]
        key = (settings["noise"], settings["budget"], settings["q"])
        groups.setdefault(key, []).append(record)
    problems = {record["settings"]["problem"] for record in records}
    scales = {name: _scale([r for r in records if _who(r)[0] == name]) for name in problems}
    zeros = {name: zero for name, (zero, _) in scales.items()}
    solved = {name: SOLVED * spread for name, (_, spread) in scales.items()}
    found = []
    for (noise, budget, q), group in sorted(groups.items()):
        compared = _of_common_seeds(group)
        medians = _medians(compared, zeros)
        apart = {record["settings"]["problem"] for record in group} - set(medians)
        found.append(
            Division(budget, q, noise, medians, zeros, solved, compared, tuple(sorted(apart)))
        )
    return found


def _of_common_seeds(records: list[Record]) -> list[Record]:
    """Return the runs by seeds that all optimisers of the same problem have."""
    seeds: dict[str, dict[str, set[int]]] = {}
    for record in records:
        problem, optimiser = _who(record)
        own = seeds.setdefault(problem, {}).setdefault(optimiser, set())
        own.add(record["settings"]["seed"])
    common = {problem: set.intersection(*own.values()) for problem, own in seeds.items()}
    return [r for r in records if r["settings"]["seed"] in common[r["settings"]["problem"]]]


def _scale(records: list[Record]) -> tuple[float, float]:
    """Return the zero of a problem's regrets, and its range: of the points that fill it, or of what
    was found where its optimum is not known.
    """
    if all(record["optimum"] is not None for record in records):
        return 0.0, min(record["range"] for record in records)
    values = [regret for record in records for _, regret in record["trace"]]
    return min(values), max(values) - min(values)


def _medians(records: list[Record], zeros: dict[str, float]) -> dict[str, dict[str, float]]:
    by_run: dict[tuple[str, str], list[float]] = {}
    for record in records:
        by_run.setdefault(_who(record), []).append(final_regret(record))
    medians: dict[str, dict[str, float]] = {}
    for (problem, optimiser), regrets in sorted(by_run.items()):
        medians.setdefault(problem, {})[optimiser] = statistics.median(regrets) - zeros[problem]
    return medians


def standings(division: Division) -> list[Standing]:
    """Return how the optimisers did, the best mean rank first."""
    ranks: dict[str, list[float]] = {}
    for problem, medians in division.medians.items():
        for name, rank in ranked(medians, division.solved[problem]).items():
            ranks.setdefault(name, []).append(rank)
    found = []
    for name, own in ranks.items():
        runs = [r for r in division.records if r["settings"]["optimiser"] == name]
        kept_up = far_ahead = behind_sobol = 0
        for problem, medians in division.medians.items():
            if name in medians:
                regret, solved = medians[name], division.solved[problem]
                peer = min(_peers(medians, name))
                kept_up += regret <= max(KEPT_UP * peer, solved)
                far_ahead += regret < FAR_AHEAD * peer
                behind_sobol += regret > max(medians.get("sobol", math.inf), solved)
        found.append(
            Standing(
                optimiser=name,
                mean_rank=statistics.fmean(own),
                num_problems=len(own),
                kept_up=kept_up,
                far_ahead=far_ahead,
                behind_sobol=behind_sobol,
                seconds_ask=statistics.median(r["seconds_ask"] for r in runs),
                peak_bytes=max(r["peak_memory_bytes"] for r in runs),
            )
        )
    return sorted(found, key=lambda standing: standing.mean_rank)


def mean_ranks(division: Division, steps: Sequence[int]) -> dict[str, list[float]]:
    """Return each optimiser's mean rank over problems after so many evaluations."""
    found: dict[str, list[float]] = {name: [] for name in division.optimisers}
    for step in steps:
        ranks: dict[str, list[float]] = {name: [] for name in division.optimisers}
        for problem, medians in division.medians.items():
            runs = [r for r in division.records if r["settings"]["problem"] == problem]
            now = {
                name: statistics.median(
                    regret_after(r, step) for r in runs if r["settings"]["optimiser"] == name
                )
                - division.zeros[problem]
                for name in medians
            }
            for name, rank in ranked(now, division.solved[problem]).items():
                ranks[name].append(rank)
        for name, own in ranks.items():
            found[name].append(statistics.fmean(own))
    return found


def ranked(values: dict[str, float], solved: float) -> dict[str, float]:
    """Return ranks, 1 of the smallest value; those below ``solved`` share one."""
    ranks = rankdata([max(value, solved) for value in values.values()])
    return dict(zip(values, ranks.tolist(), strict=True))


def final_regret(record: Record) -> float:
    """Return the noiseless regret of the point that a run recommends."""
    value = record["regret_recommended"]
    return math.inf if value is None else float(value)


def regret_after(record: Record, num_evaluations: int) -> float:
    """Return the noiseless regret of the best observed point after so many evaluations."""
    found = [regret for number, regret in record["trace"] if number <= num_evaluations]
    return found[-1] if found else math.inf


def _peers(medians: dict[str, float], name: str) -> list[float]:
    others = [m for other, m in medians.items() if other not in (*STRATEGIES, "sobol", name)]
    return others or [math.inf]


def _who(record: Record) -> tuple[str, str]:
    settings = record["settings"]
    return settings["problem"], settings["optimiser"]
