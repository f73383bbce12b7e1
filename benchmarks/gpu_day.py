"""A day with a GPU, in stages that stand alone and end at a deadline.

    python benchmarks/gpu_day.py ceilings --deadline 1200 --out results/gpu
    python benchmarks/gpu_day.py lin2023 --deadline 3600 --out results/gpu

A stage is a list of commands that write records of their own into the folder: (1) ``ceilings``, the
tests of the device and what it can do at best; (2) ``products``, kernel products; (3) ``lin2023``,
two rounds of ``lin2023-small`` by every solver, then all rounds by the best; (4) ``adasap``, the
rounds of ``adasap2025`` by ADASAP, auto and SDD; (5) ``variants``, of precision, compilation and
batches, and a group of one process, by NCCL.

STAGE.json says of each step, as soon as it is over, how it ended and how long it took. A step that
fails does not stop the others. At the deadline the running step is ended, and nothing is begun;
the same command goes on later, with finished steps kept and interrupted rounds resumed. A finished
step runs again if its command is another now, and records of a rehearsal or of another device are
refused.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.scripts import script_parser
from scalable_bo.cli.console import bad_input, check_folder
from scalable_bo.experiments.records import (
    Record,
    describe_environment,
    differences,
    existing_record,
    read_records,
    write_record,
)
from scalable_bo.experiments.thompson.cell import ThompsonCell
from surrogates import checks
from surrogates.solvers.registry import SOLVERS

ROOT = Path(__file__).resolve().parents[1]
SECONDS_TO_END = 20.0  # that a step has between SIGTERM and SIGKILL
LAST_CHARACTERS = 4000  # of a step's output, kept


@dataclass(frozen=True)
class Step:
    """A command, and what its environment has besides."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Day:
    """Where a stage runs, and how large it is.

    Attributes:
        device: of PyTorch.
        folder: of the records.
        small: take sizes that a CPU does in seconds: a rehearsal.
    """

    device: str
    folder: Path
    small: bool

    def script(self, name: str, record: str, *arguments: str) -> tuple[str, ...]:
        """Return the command of a script beside this one, which writes a ``record``."""
        out = str(self.folder / f"{record}.json")
        return sys.executable, str(ROOT / "benchmarks" / name), *arguments, "--out", out

    def kernels(self, record: str, *arguments: str) -> tuple[str, ...]:
        """Return the command of kernel products, which writes a ``record``."""
        device = ("--device", self.device)
        return self.script("ceilings.py", record, "--parts", "kernels", *device, *arguments)

    def bench(self, folder: str, preset: str, *arguments: str) -> tuple[str, ...]:
        """Return the command of a Thompson benchmark with records in a ``folder``."""
        return (
            *(sys.executable, "-m", "scalable_bo", "bench", "thompson", "--preset", preset),
            *("--seeds", "0", "--device", self.device, "--out", str(self.folder / folder)),
            *arguments,
        )


def ceilings(day: Day) -> Iterator[Step]:
    tests = ("tests/surrogates/operators/test_sparse.py",) if day.small else ("-m", "gpu")
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    yield Step("tests", pytest)
    few = ("--sizes", "64", "--bytes", "100000", "--repeats", "1")
    parts = ("--parts", "copies", "products", "factorisations")
    sizes = ("--device", day.device, *parts, *(few if day.small else ()))
    yield Step("ceilings", day.script("ceilings.py", "ceilings_of_device", *sizes))


def products(day: Day) -> Iterator[Step]:
    for n, dim in ((500, 2),) if day.small else ((50_000, 8), (250_000, 8), (50_000, 20)):
        for dtype in ("float32", "float64"):
            sizes = ("--n", str(n), "--dim", str(dim), "--dtype", dtype)
            few = ("--rows", "50", "--columns", "2", "--repeats", "1")
            many = ("--rows", "16384", "--columns", "1", "8", "32", "64", "256", "1000")
            name = f"kernel_product_{n}_{dim}_{dtype}"
            yield Step(name, day.kernels(name, *sizes, *(few if day.small else many)))


def lin2023(day: Day) -> Iterator[Step]:
    preset = "smoke" if day.small else "lin2023-small"
    solvers = ("cg", "sdd") if day.small else tuple(SOLVERS)
    settings = ("--lengthscale", "0.5", "--solver")
    for solver in solvers:
        command = day.bench("lin2023_two", preset, *settings, solver, "--rounds", "2")
        yield Step(f"two rounds by {solver}", command)
    best = best_solver(day.folder / "lin2023_two")
    if best is not None:
        yield Step(f"all rounds by {best}", day.bench("lin2023", preset, *settings, best))


def adasap(day: Day) -> Iterator[Step]:
    preset = "smoke" if day.small else "adasap2025"
    for lengthscale in ("2", "3"):
        for solver in ("adasap", "auto", "sdd"):
            arguments = ("--solver", solver, "--lengthscale", lengthscale)
            name = f"{solver} at lengthscale {lengthscale}"
            yield Step(name, day.bench("adasap", preset, *arguments))


def variants(day: Day) -> Iterator[Step]:
    n = "300" if day.small else "50000"
    rows = "50" if day.small else "16384"
    for mode in ("always", "never"):
        name = f"kernel_product_compile_{mode}"
        command = day.kernels(name, "--n", n, "--rows", rows, "--columns", "64")
        yield Step(name, command, {"SCALABLE_BO_COMPILE": mode})
    name = "kernel_product_not_split"  # in float32, and not by three products in TF32
    command = day.kernels(name, "--n", n, "--rows", rows, "--columns", "64", "1000")
    yield Step(name, command, {"SCALABLE_BO_PROCESS_SETTINGS": "keep"})
    preset = "smoke" if day.small else "lin2023-small"
    settings = ("--solver", "auto", "--lengthscale", "0.5", "--rounds", "1")
    for dtype in ("float32", "float64"):
        command = day.bench(f"round_{dtype}", preset, *settings, "--dtype", dtype)
        yield Step(f"a round in {dtype}", command)
    for q in ("4",) if day.small else ("250", "2000"):
        yield Step(f"a round of {q}", day.bench(f"round_of_{q}", preset, *settings, "--q", q))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
    example = str(ROOT / "examples" / "distributed_solve.py")
    yield Step("a group of one process", (sys.executable, *torchrun, example))


STAGES: dict[str, Callable[[Day], Iterator[Step]]] = {
    "ceilings": ceilings,
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
    for record in read_records(folder, "*.json", [ThompsonCell.experiment]):
        last = record["rounds"][-1]
        seconds = last["seconds_solve"] + last["seconds_acquisition"]
        found.append((last["best_noiseless"], -seconds, record["settings"]["solver"]))
    return max(found)[2] if found else None


def begin_stage(name: str, day: Day) -> Record:
    """Return the record of a stage, with the steps that its file in the folder has.

    Raises:
        ValueError: if that file is something else, or of another device or size.
    """
    record: Record = {
        "stage": name,
        "small": day.small,
        "complete": False,
        "environment": describe_environment(torch.device(day.device)),
        "steps": {},
    }
    path = day.folder / f"{name}.json"
    if path.exists():
        found = existing_record(path) or {}
        is_whole = found.keys() >= {"environment", "steps"}
        if found.get("stage") != name or not is_whole:
            raise ValueError(
                f"`out` must have nothing but the record of the stage {name} in {path}, which holds"
                " something else or is damaged. Move it away, or choose another folder."
            )
        if changes := differences(_made_on(found), _made_on(record)):
            raise ValueError(
                f"`out` has another record of the stage {name}: {', '.join(changes)}. Choose"
                " another folder."
            )
        record["steps"] = found["steps"]
    return record


def _made_on(record: Record) -> dict[str, Any]:
    device = record["environment"]["device"]
    return {"device": device, "small": record.get("small", False)}


def run_stage(record: Record, day: Day, deadline: float) -> Record:
    """Run what is left of a stage until so many seconds have passed; return its record."""
    end = time.monotonic() + deadline
    name = record["stage"]
    path = day.folder / f"{name}.json"
    for step in STAGES[name](day):
        if is_done(step, record["steps"].get(step.name, {})):
            continue
        left = end - time.monotonic()
        if left <= 0:
            write_record(path, record)
            return record
        print(f"{name}: {step.name}, {left:.0f} s left", flush=True)
        record["steps"][step.name] = run_step(step, left)
        write_record(path, record)
    record["complete"] = all(entry["returned"] == 0 for entry in record["steps"].values())
    write_record(path, record)
    return record


def is_done(step: Step, found: dict[str, Any]) -> bool:
    """Return whether a record's entry is of this command and environment, and without error."""
    wanted = {"command": list(step.command), "environment": step.environment, "returned": 0}
    return found.items() >= wanted.items()


def run_step(step: Step, seconds: float) -> dict[str, Any]:
    """Run a command for so many seconds at most; return how it ended."""
    start = time.monotonic()
    early: list[int] = []  # signals that come before there is a process to end
    handler = signal.signal(signal.SIGTERM, lambda number, _: early.append(number))
    process = subprocess.Popen(
        step.command,
        cwd=ROOT,
        env=os.environ | step.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # what it starts ends with it
    )
    late = False
    try:
        signal.signal(signal.SIGTERM, handler)
        if early:
            signal.raise_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        late = True
        output = end_process(process)
    except BaseException:
        end_process(process)
        raise
    return {
        "command": list(step.command),
        "environment": step.environment,
        "returned": process.returncode,
        "ended_by_deadline": late,
        "seconds": time.monotonic() - start,
        "output": output[-LAST_CHARACTERS:],
    }


def end_process(process: "subprocess.Popen[str]") -> str:
    """End a process and those it has started; return what it wrote."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            return process.communicate(timeout=SECONDS_TO_END)[0]
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            break
    return process.communicate()[0]


def main() -> None:
    parser = script_parser(__doc__, "folder of the records")
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--deadline", type=float, required=True, help="seconds from now")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a rehearsal, in seconds on a CPU")
    arguments = parser.parse_args()
    if arguments.out is None:
        parser.error("--out, the folder of the records, is required")
    day = Day(arguments.device, arguments.out.resolve(), arguments.small)
    with bad_input():
        checks.positive_float("deadline", arguments.deadline, "Give the seconds from now.")
        checks.device("device", arguments.device)
        check_folder(day.folder)
        record = begin_stage(arguments.stage, day)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the step, too
    run_stage(record, day, arguments.deadline)
    for name, step in record["steps"].items():
        state = (
            "done" if step["returned"] == 0 else "ended" if step["ended_by_deadline"] else "failed"
        )
        print(f"{state:6s} {step['seconds']:8.1f} s  {name}")
    sys.exit(0 if record["complete"] else 1)


if __name__ == "__main__":
    main()
