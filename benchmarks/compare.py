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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORKING_TREE = "."
MOST_SECONDS = 300  # that one process may take


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
        """The median of ``after`` over that of ``before``."""
        return (
            statistics.median(self.after) / statistics.median(self.before)
            if self.absent is None
            else None
        )

    @property
    def interval(self) -> tuple[float, float] | None:
        """The smallest and the largest ratio of a pair."""
        if self.absent is not None:
            return None
        ratios = [after / before for before, after in zip(self.before, self.after, strict=True)]
        return min(ratios), max(ratios)

    def is_slower(self, limit: float) -> bool:
        """Whether the ratio is above ``limit`` and every pair says slower,
        or the workload is lost.
        """
        return self.lost or (
            self.ratio is not None
            and self.interval is not None
            and self.ratio > limit
            and self.interval[0] > 1.0
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
    on_workload: Callable[[Comparison], None] | None = None,
) -> list[Comparison]:
    """Return how fast each workload of ``script`` runs on the code of two commits.

    Args:
        repository: whose top folder holds the packages.
        before: a commit, or "." for the working tree as it is.
        after: likewise.
        script: prints ``{"seconds": …}`` or ``{"absent": …}`` for the name of a workload, with the
            code that PYTHONPATH names.
        workloads: their names.
        repeats: processes of each commit and workload.
        threads: of each process.
        device: that the script is to use, in its environment.
        on_workload: called when a workload is done.

    Raises:
        ValueError: if a commit is not there.
        RuntimeError: if a workload fails; the message has its error.
    """
    found = []
    with ExitStack() as stack:
        folders = []
        for commit in (before, after):
            folder = (
                repository
                if commit == WORKING_TREE
                else Path(stack.enter_context(tempfile.TemporaryDirectory()))
            )
            if commit != WORKING_TREE:
                unpack(repository, commit, folder)
            folders.append(folder)
        for workload in workloads:
            found.append(compare_one(workload, folders, script, repeats, threads, device))
            if on_workload is not None:
                on_workload(found[-1])
    return found


def compare_one(
    workload: str,
    folders: Sequence[Path],
    script: Path,
    repeats: int,
    threads: int,
    device: str,
) -> Comparison:
    before = []
    after = []
    for repeat in range(repeats):
        order = (0, 1) if repeat % 2 == 0 else (1, 0)
        answers = {
            side: run_once(script, workload, folders[side], threads, device) for side in order
        }
        if absent := [answers[side]["absent"] for side in (0, 1) if "absent" in answers[side]]:
            return Comparison(workload, [], [], absent[-1], lost="seconds" in answers[0])
        before.append(answers[0]["seconds"])
        after.append(answers[1]["seconds"])
    return Comparison(workload, before, after)


def run_once(
    script: Path, workload: str, folder: Path, threads: int, device: str
) -> dict[str, Any]:
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
        timeout=MOST_SECONDS,
    )
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"The workload {workload} failed in {folder}: {last}")
    answer: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return answer


def unpack(repository: Path, commit: str, folder: Path) -> None:
    """Write the files of ``commit`` into ``folder``."""
    archive = subprocess.run(
        ["git", "-C", str(repository), "archive", "--format=tar", commit], capture_output=True
    )
    if archive.returncode:
        reason = archive.stderr.decode(errors="replace").strip()
        raise ValueError(f"`commit` must name a commit of {repository}, got {commit!r} ({reason}).")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")


def names_of(script: Path) -> list[str]:
    """Return the workloads of a script."""
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    names: list[str] = json.loads(run.stdout)
    return names


def chosen(script: Path, text: str | None) -> list[str]:
    known = names_of(script)
    names = known if text is None else text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"`workloads` must be among {', '.join(known)}, got {unknown[0]!r}.")
    return names


def describe(found: Comparison, limit: float) -> tuple[str, ...]:
    """Return a row of the table."""
    if found.ratio is None or found.interval is None:
        return found.workload, "–", "–", "–", "–", "LOST" if found.lost else "absent"
    low, high = found.interval
    milliseconds = [
        f"{1e3 * statistics.median(seconds):.1f}" for seconds in (found.before, found.after)
    ]
    verdict = (
        "SLOWER"
        if found.is_slower(limit)
        else "faster"
        if high < 1.0 and found.ratio < 1.0 / limit
        else ""
    )
    return found.workload, *milliseconds, f"{found.ratio:.2f}", f"{low:.2f} – {high:.2f}", verdict


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", nargs="?", default="HEAD", help="commit to compare with")
    parser.add_argument(
        "after", nargs="?", default=WORKING_TREE, help="commit to judge; . for the working tree"
    )
    parser.add_argument(
        "--workloads", default=None, help="names, separated by commas; all by default"
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="processes of each commit and workload"
    )
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--device", default="cpu", help="of the workloads")
    parser.add_argument(
        "--fail-above", type=float, default=1.2, help="ratio above which a workload is slower"
    )
    parser.add_argument("--repository", type=Path, default=ROOT)
    parser.add_argument(
        "--script", type=Path, default=ROOT / "benchmarks" / "workloads.py", help="of the workloads"
    )
    parser.add_argument("--out", type=Path, default=None, help="JSON record to write")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {options.repeats}.")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)

    from scalable_bo.cli.console import print_table

    def report(found: Comparison) -> None:
        print(" ".join(describe(found, options.fail_above)), file=sys.stderr, flush=True)

    try:
        names = chosen(options.script, options.workloads)
        found = compare(
            options.repository,
            options.before,
            options.after,
            options.script,
            names,
            options.repeats,
            threads=options.threads,
            device=options.device,
            on_workload=report,
        )
    except (ValueError, RuntimeError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 2
    print_table(
        f"{options.after} against {options.before}: medians of {options.repeats}, milliseconds",
        ("workload",),
        ("before", "after", "ratio", "of pairs", ""),
        [describe(entry, options.fail_above) for entry in found],
    )
    slower = [entry.workload for entry in found if entry.is_slower(options.fail_above)]
    if options.out is not None:
        write(options, found, slower)
    print(
        f"slower by more than {options.fail_above:g}, or lost: {', '.join(slower)}"
        if slower
        else "nothing is slower"
    )
    return 1 if slower else 0


def write(options: argparse.Namespace, found: Sequence[Comparison], slower: Sequence[str]) -> None:
    from benchmarks.scripts import write_benchmark

    commits = {
        side: identity(options.repository, getattr(options, side)) for side in ("before", "after")
    }
    settings = {
        "repeats": options.repeats,
        "threads": options.threads,
        "fail_above": options.fail_above,
        "commits": commits,
    }
    results = [
        asdict(entry) | {"ratio": entry.ratio, "interval": entry.interval} for entry in found
    ]
    write_benchmark(
        options.out,
        "compare",
        device=options.device,
        settings=settings,
        slower=list(slower),
        results=results,
    )


def identity(repository: Path, commit: str) -> str:
    name = "HEAD" if commit == WORKING_TREE else commit
    command = ["git", "-C", str(repository), "rev-parse", name]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return f"{found}, and the working tree's changes" if commit == WORKING_TREE else found


if __name__ == "__main__":
    sys.exit(main())
