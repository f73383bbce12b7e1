"""The speed of two commits, measured in turn in one run: is something slower than it was?

    python benchmarks/compare.py  # the last commit against the working tree
    python benchmarks/compare.py main~5 main --workloads sap,cg --repeats 9 \\
        --fail-above 1.2 --out results/compare.json

Each commit is unpacked into a temporary folder (the repository is only read), and every workload of
`benchmarks/workloads.py` (that of the working tree, for both) runs in a fresh process of one or the
other, A B B A A B …, so that what else the machine does meets both. The ratio is that of the
medians; the interval holds the ratios of all neighbouring pairs. A workload counts as slower where
the ratio is above the limit and no pair says the contrary, and as lost where only the first commit
has it; the exit code is then 1. One that the first commit lacks is absent, and no alarm.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.scripts import script_parser, write_benchmark
from scalable_bo.cli.console import print_table

ROOT = Path(__file__).resolve().parents[1]
WORKING_TREE = "."


@dataclass(frozen=True)
class Comparison:
    """One workload on both commits.

    Attributes:
        before: seconds of each repeat at the first commit; empty where it is absent.
        after: at the second.
        absent: what the commit that lacks the workload said.
        lost: whether only the second lacks it.
    """

    workload: str
    before: list[float]
    after: list[float]
    absent: str | None = None
    lost: bool = False

    @property
    def ratio(self) -> float | None:
        """The median of ``after`` over that of ``before``; ``None`` without repeats."""
        if not self.before:
            return None
        return statistics.median(self.after) / statistics.median(self.before)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The smallest and the largest ratio of a pair."""
        if not self.before:
            return None
        ratios = [after / before for before, after in zip(self.before, self.after, strict=True)]
        return min(ratios), max(ratios)

    def is_slower(self, limit: float) -> bool:
        """Whether the ratio exceeds ``limit`` and all pairs say slower, or the workload is lost."""
        if self.ratio is None or self.interval is None:
            return self.lost
        return self.ratio > limit and self.interval[0] > 1.0

    def row(self, limit: float) -> tuple[str, ...]:
        if self.ratio is None or self.interval is None:
            return self.workload, "–", "–", "–", "–", "LOST" if self.lost else "absent"
        low, high = self.interval
        medians = [1e3 * statistics.median(seconds) for seconds in (self.before, self.after)]
        faster = "faster" if high < 1.0 and self.ratio < 1.0 / limit else ""
        return (
            self.workload,
            *(f"{milliseconds:.1f}" for milliseconds in medians),
            f"{self.ratio:.2f}",
            f"{low:.2f} – {high:.2f}",
            "SLOWER" if self.is_slower(limit) else faster,
        )


def compare(
    repository: Path,
    before: str,
    after: str,
    script: Path,
    workloads: Sequence[str],
    repeats: int,
    *,
    threads: int = 1,
    device: str = "cpu",
    limit: float = 1.2,
) -> list[Comparison]:
    """Return how fast each workload of ``script`` runs on the code of two commits, and write a line
    for each to stderr.

    Args:
        repository: whose top folder holds the packages.
        before: a commit, or "." for the working tree as it is.
        script: prints ``{"seconds": …}`` or ``{"absent": …}`` for the name of a workload, with the
            code that PYTHONPATH names.
        device: that the script is to use, in its environment.
        limit: the ratio above which a line says slower.

    Raises:
        ValueError: if a commit is not there.
        RuntimeError: if a workload fails; the message has its error.
    """
    found = []
    with ExitStack() as stack:
        folders = [repository, repository]
        for side, commit in enumerate((before, after)):
            if commit != WORKING_TREE:
                folders[side] = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                unpack(repository, commit, folders[side])
        for workload in workloads:
            answers: tuple[list[Any], list[Any]] = ([], [])
            for repeat in range(repeats):
                for side in (0, 1) if repeat % 2 == 0 else (1, 0):
                    answers[side].append(run_once(script, workload, folders[side], threads, device))
                before_lacks, after_lacks = (own[-1].get("absent") for own in answers)
                if lacks := after_lacks or before_lacks:
                    found.append(Comparison(workload, [], [], lacks, before_lacks is None))
                    break
            else:
                first, second = ([answer["seconds"] for answer in own] for own in answers)
                found.append(Comparison(workload, first, second))
            print(" ".join(found[-1].row(limit)), file=sys.stderr, flush=True)
    return found


def run_once(
    script: Path,
    workload: str,
    folder: Path,
    threads: int,
    device: str,
    most_seconds: float = 300.0,
) -> dict[str, Any]:
    """Return what the script says of a workload, in a process of at most so many seconds."""
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "WORKLOADS_DEVICE": device,
    }
    environment.pop("SCALABLE_BO_COMPILE", None)
    run = subprocess.run(
        [sys.executable, str(script), workload],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=most_seconds,
    )
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"The workload {workload} failed in {folder}: {last}")
    answer: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return answer


def unpack(repository: Path, commit: str, folder: Path) -> None:
    archive = subprocess.run(
        ["git", "-C", str(repository), "archive", "--format=tar", commit], capture_output=True
    )
    if archive.returncode:
        reason = archive.stderr.decode(errors="replace").strip()
        raise ValueError(f"`commit` must name a commit of {repository}, got {commit!r} ({reason}).")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")


def chosen(script: Path, text: str | None) -> list[str]:
    """Return the names of workloads, all of the script's without a ``text``."""
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    known: list[str] = json.loads(run.stdout)
    names = known if text is None else text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"`workloads` must be among {', '.join(known)}, got {unknown[0]!r}.")
    return names


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    add = parser.add_argument
    add("before", nargs="?", default="HEAD", help="commit to compare with")
    add("after", nargs="?", default=WORKING_TREE, help="commit to judge; . for the working tree")
    add("--workloads", default=None, help="names, separated by commas; all by default")
    add("--repeats", type=int, default=5, help="processes of each commit and workload")
    add("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--device", default="cpu", help="of the workloads")
    add("--fail-above", type=float, default=1.2, help="ratio above which a workload is slower")
    add("--repository", type=Path, default=ROOT)
    workloads = ROOT / "benchmarks" / "workloads.py"
    add("--script", type=Path, default=workloads, help="of the workloads")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {options.repeats}.")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    limit = options.fail_above
    try:
        found = compare(
            options.repository,
            options.before,
            options.after,
            options.script,
            chosen(options.script, options.workloads),
            options.repeats,
            threads=options.threads,
            device=options.device,
            limit=limit,
        )
    except (ValueError, RuntimeError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 2
    print_table(
        f"{options.after} against {options.before}: medians of {options.repeats}, milliseconds",
        ("workload",),
        ("before", "after", "ratio", "of pairs", ""),
        [entry.row(limit) for entry in found],
    )
    slower = [entry.workload for entry in found if entry.is_slower(limit)]
    settings = {name: getattr(options, name) for name in ("repeats", "threads", "fail_above")}
    commits = {
        side: identity(options.repository, getattr(options, side)) for side in ("before", "after")
    }
    write_benchmark(
        options.out,
        "compare",
        device=options.device,
        settings=settings | {"commits": commits},
        slower=slower,
        results=[asdict(one) | {"ratio": one.ratio, "interval": one.interval} for one in found],
    )
    is_slower = f"slower by more than {limit:g}, or lost: {', '.join(slower)}"
    print(is_slower if slower else "nothing is slower")
    return 1 if slower else 0


def identity(repository: Path, commit: str) -> str:
    name = "HEAD" if commit == WORKING_TREE else commit
    command = ["git", "-C", str(repository), "rev-parse", name]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return f"{found}, and the working tree's changes" if commit == WORKING_TREE else found


if __name__ == "__main__":
    sys.exit(main())
