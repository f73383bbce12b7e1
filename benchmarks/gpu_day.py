"""A day with a GPU, in stages that stand alone and end at a deadline.

    python benchmarks/gpu_day.py ceilings --deadline 1200 --out results/gpu
    python benchmarks/gpu_day.py lin2023 --deadline 3600 --out results/gpu

A stage is a list of commands that write records of their own into the folder: (1) ``ceilings``, the
tests of the device and what it can do at best; (2) ``products``, kernel products; (3) ``lin2023``,
two rounds of ``lin2023-small`` by every solver, then all rounds by the best; (4) ``adasap``, the
rounds of ``adasap2025`` by ADASAP, auto and SDD; (5) ``variants``, of precision, compilation and
batches, and a group of one process, by NCCL.

A step has a record, too: how it ended, how long it took, and the end of its output. A step that
fails does not stop the others. At the deadline the running step is ended, and nothing is begun; the
same command goes on later, with finished steps kept and interrupted rounds resumed. Every device,
and a rehearsal, has a folder of its own.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

import torch

from benchmarks.scripts import script_parser
from scalable_bo.cli.console import bad_input, check_folder
from scalable_bo.experiments.cells import Cell, Status, files, run_cells
from scalable_bo.experiments.records import Record, finished_record, read_records
from scalable_bo.experiments.thompson.cell import ThompsonCell
from surrogates import checks
from surrogates.solvers.registry import SOLVERS

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class DayStep(Cell[None]):
    """A command, and what its environment has besides; it ends at the deadline.

    Args:
        last_characters: of its output that the record keeps.
    """

    experiment: ClassVar[str] = "gpu_day"
    what: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    end: float = float("inf")
    seconds_to_end: int = 20
    last_characters: int = 4000

    @property
    def name(self) -> str:
        return re.sub(r"[^\w.-]", "-", f"step_{self.what}")

    def settings(self) -> dict[str, Any]:
        return {"command": list(self.command), "environment": self.environment}

    def run(self, data: None, on_status: Status, state: Path) -> Iterator[Record]:
        start = time.monotonic()
        # This ends all that the command has started, also where it is told to end itself
        limit = ("timeout", f"--kill-after={self.seconds_to_end}", f"{max(self.end - start, 0.01)}")
        with subprocess.Popen(
            (*limit, *self.command),
            cwd=ROOT,
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                output, _ = process.communicate()
            finally:
                process.terminate()
        yield {
            "complete": process.returncode == 0,
            "returned": process.returncode,
            "ended_by_deadline": process.returncode != 0 and time.monotonic() >= self.end,
            "seconds": time.monotonic() - start,
            "output": output[-self.last_characters :],
        }

    def describe(self, record: Record) -> str:
        late = "ended by the deadline" if record["ended_by_deadline"] else "failed"
        state = "done" if record["complete"] else late
        return f"{self.what}: {state} after {record['seconds']:.1f} s"


@dataclass(frozen=True)
class Day:
    """Where a stage runs, how large it is, and when it ends.

    Attributes:
        device: of PyTorch.
        out: the folder of the records of all devices.
        small: take sizes that a CPU does in seconds: a rehearsal.
        end: by ``time.monotonic``.
    """

    device: str
    out: Path
    small: bool
    end: float = float("inf")

    @property
    def folder(self) -> Path:
        """The folder of the records of this device and size."""
        device = torch.device(self.device)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
        return self.out / f"{name.replace(' ', '-')}{'-small' if self.small else ''}"

    def step(self, what: str, command: tuple[str, ...], **environment: str) -> DayStep:
        return DayStep(
            what=what, command=command, environment=environment, end=self.end, device=self.device
        )

    def script(self, name: str, record: str, *arguments: str) -> tuple[str, ...]:
        """Return the command of a script beside this one, which writes a ``record``."""
        out = str(self.folder / f"{record}.json")
        return sys.executable, str(ROOT / "benchmarks" / name), *arguments, "--out", out

    def product_step(self, record: str, *arguments: str, **environment: str) -> DayStep:
        """Return the step of kernel products, which writes a ``record``."""
        arguments = ("--parts", "kernels", "--device", self.device, *arguments)
        return self.step(record, self.script("ceilings.py", record, *arguments), **environment)

    def bench(self, what: str, folder: str, *arguments: str) -> DayStep:
        """Return the step of a Thompson benchmark with records in a ``folder``."""
        command = (sys.executable, "-m", "scalable_bo", "bench", "thompson", *arguments)
        where = ("--device", self.device, "--out", str(self.folder / folder))
        return self.step(what, (*command, "--seeds", "0", *where))


def device_ceilings(day: Day) -> Iterator[DayStep]:
    tests = ("tests/surrogates/operators/test_quadratic.py",) if day.small else ("-m", "gpu")
    yield day.step(
        "tests", (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    )
    few = ("--sizes", "64", "--repeats", "1")
    parts = ("--parts", "products", "factorisations")
    sizes = ("--device", day.device, *parts, *(few if day.small else ()))
    yield day.step("ceilings", day.script("ceilings.py", "ceilings_of_device", *sizes))


def products(day: Day) -> Iterator[DayStep]:
    for n, dim in ((500, 2),) if day.small else ((50_000, 8), (250_000, 8), (50_000, 20)):
        for dtype in ("float32", "float64"):
            sizes = ("--n", str(n), "--dim", str(dim), "--dtype", dtype)
            few = ("--rows", "50", "--columns", "2", "--repeats", "1")
            many = ("--rows", "16384", "--columns", "1", "8", "32", "64", "256", "1000")
            name = f"kernel_product_{n}_{dim}_{dtype}"
            yield day.product_step(name, *sizes, *(few if day.small else many))


def lin2023(day: Day) -> Iterator[DayStep]:
    preset = ("--preset", "smoke" if day.small else "lin2023-small", "--lengthscale", "0.5")
    for solver in ("cg", "sdd") if day.small else tuple(SOLVERS):
        name = f"two rounds by {solver}"
        yield day.bench(name, "lin2023_two", *preset, "--solver", solver, "--rounds", "2")
    best = best_solver(day.folder / "lin2023_two")
    if best is not None:
        yield day.bench(f"all rounds by {best}", "lin2023", *preset, "--solver", best)


def adasap(day: Day) -> Iterator[DayStep]:
    preset = ("--preset", "smoke" if day.small else "adasap2025")
    for lengthscale in ("2", "3"):
        for solver in ("adasap", "auto", "sdd"):
            settings = ("--solver", solver, "--lengthscale", lengthscale)
            yield day.bench(f"{solver} at lengthscale {lengthscale}", "adasap", *preset, *settings)


def variants(day: Day) -> Iterator[DayStep]:
    sizes = ("--n", "300", "--rows", "50") if day.small else ("--n", "50000", "--rows", "16384")
    for mode in ("always", "never"):
        name = f"kernel_product_compile_{mode}"
        yield day.product_step(name, *sizes, "--columns", "64", SCALABLE_BO_COMPILE=mode)
    name = "smoke" if day.small else "lin2023-small"
    preset = ("--preset", name, "--solver", "auto", "--lengthscale", "0.5", "--rounds", "1")
    for dtype in ("float32", "float64"):
        yield day.bench(f"a round in {dtype}", f"round_{dtype}", *preset, "--dtype", dtype)
    for q in ("4",) if day.small else ("250", "2000"):
        yield day.bench(f"a round of {q}", f"round_of_{q}", *preset, "--q", q)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
    example = str(ROOT / "examples" / "distributed_solve.py")
    yield day.step("a group of one process", (sys.executable, *torchrun, example))


STAGES: dict[str, Callable[[Day], Iterator[DayStep]]] = {
    "ceilings": device_ceilings,
    "products": products,
    "lin2023": lin2023,
    "adasap": adasap,
    "variants": variants,
}


def best_solver(folder: Path) -> str | None:
    """Return the solver of the records in a folder whose last round has found the best value, of
    equal ones the fastest; ``None`` if there is no complete record.
    """
    found = []
    for record in read_records(folder, "*.json", [ThompsonCell.experiment]).values():
        last = record["rounds"][-1]
        seconds = last["seconds_solve"] + last["seconds_acquisition"]
        found.append((last["best_noiseless"], -seconds, record["settings"]["solver"]))
    return max(found)[2] if found else None


def main() -> None:
    parser = script_parser(__doc__, "folder of the records")
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--deadline", type=float, required=True, help="seconds from now")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a rehearsal, in seconds on a CPU")
    arguments = parser.parse_args()
    if arguments.out is None:
        parser.error("--out, the folder of the records, is required")
    with bad_input():
        checks.positive_float("deadline", arguments.deadline, "Give the seconds from now.")
        checks.device("device", arguments.device)
        end = time.monotonic() + arguments.deadline
        day = Day(arguments.device, arguments.out.resolve(), arguments.small, end)
        check_folder(day.folder)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the step, too
    sys.exit(run_stage(STAGES[arguments.stage], day))


def run_stage(stage: Callable[[Day], Iterator[DayStep]], day: Day) -> int:
    """Run what is left of a stage until the deadline; return 0 if nothing is left then, else 1."""
    for step, record, kept in run_cells(
        takewhile(lambda _: time.monotonic() < day.end, stage(day)), day.folder
    ):
        print(f"{step.describe(record)}{' (kept)' if kept else ''}", flush=True)
    return int(
        any(finished_record(files(s, day.folder)[0], s.settings()) is None for s in stage(day))
    )


if __name__ == "__main__":
    main()
