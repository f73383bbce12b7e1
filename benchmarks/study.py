"""What a stored study costs: asking for 500 points among many rows, a million rows added and opened
again, and a resumed round.

    python benchmarks/study.py --parts ask,add,resume --rows 5000,20000 --dtype float32 \\
        --out benchmarks/results/study.json

The record keeps what it has of other parts, rows, dtypes and devices. Seconds are of the clock,
`cpu_seconds` of all threads. The rows are uniform in [0, 1]⁸ with a smooth value and noise of
standard deviation 0.05. `peak_bytes` is the growth of the process's resident memory, or of a CUDA
device's, `predicted_bytes` what was said before.
"""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import torch
from rich.console import Console
from torch import Tensor

from scalable_bo.experiments.records import (
    describe_environment,
    peak_memory_bytes,
    read_record,
    reset_peak_memory,
    write_record,
)
from scalable_bo.experiments.scripts import script_parser
from scalable_bo.experiments.thompson.samplers import Stopwatch
from scalable_bo.space.space import Float, Space
from scalable_bo.study.prediction import predicted_bytes
from scalable_bo.study.study import Study
from surrogates import memory

SPACE = Space(**{f"x{i}": Float(0.0, 1.0) for i in range(8)})
NUM_ADDED = 1_000_000
RESUMED_ROWS = 5000
RESUMED_Q = 20


def rows(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, SPACE.dim, generator=generator, dtype=torch.float64)
    return X, value(X) + 0.05 * torch.randn(n, generator=generator, dtype=torch.float64)


def value(X: Tensor) -> Tensor:
    return 0.3 * torch.sin(6 * X[:, 0]) * torch.cos(5 * X[:, 1]) - (X - 0.4).square().sum(1)


@dataclass(frozen=True)
class Place:
    """Where a study computes, and in which precision."""

    device: torch.device
    dtype: torch.dtype

    def open_study(self, folder: Path) -> Study:
        return Study(SPACE, maximize=True, path=folder, dtype=self.dtype, device=self.device)

    @contextmanager
    def measured(self) -> Iterator[dict[str, Any]]:
        """Yield a dict that has the seconds, processor seconds and growth of the memory at the end:
        the resident one, or that of a CUDA device.
        """
        reset_peak_memory(self.device)
        before = (
            torch.cuda.memory_allocated(self.device)
            if self.device.type == "cuda"
            else psutil.Process().memory_info().rss
        )
        cpu = time.process_time()
        found: dict[str, Any] = {}
        with Stopwatch(self.device) as watch:
            yield found
        found["seconds"] = watch.seconds
        found["cpu_seconds"] = time.process_time() - cpu
        found["peak_bytes"] = max(0, peak_memory_bytes(self.device) - before)


def ask(folder: Path, n: int, q: int, place: Place, console: Console) -> dict[str, Any]:
    """One ask for q points among n rows, the hyperparameters fitted."""
    with place.open_study(folder) as study, console.status("") as status:
        study.add_data(*rows(n))
        predicted = predicted_bytes(n, q, place.dtype, memory.available(place.device))
        with place.measured() as found:
            batch = study.ask(q, callback=lambda text: status.update(f"{n} rows: {text}"))
        report = study.last_ask
        model = study.model
        assert model is not None
        assert model.solution is not None
        return {
            "rows": n,
            "q": q,
            "dtype": str(place.dtype).removeprefix("torch."),
            **found,
            "predicted_bytes": predicted,
            "seconds_fit": report.seconds_fit,
            "seconds_solve": report.seconds_solve,
            "seconds_acquisition": report.seconds_acquisition,
            "residual": report.residual,
            "epochs": model.solution.epochs,
            "note": model.solution.note,
            "best_noiseless": {
                "rows": value(rows(n)[0]).max().item(),
                "batch": value(batch.X).max().item(),
            },
        }


def add(folder: Path, place: Place) -> list[dict[str, Any]]:
    """Add a million rows from a Parquet file, and open the study again."""
    X, y = rows(NUM_ADDED)
    frame = pd.DataFrame(X.numpy(), columns=list(SPACE.names)).assign(value=y.numpy())
    frame.to_parquet(path := folder.with_suffix(".parquet"))
    del X, y, frame
    with place.open_study(folder) as study, place.measured() as added:
        study.add_data(path, target="value")
    with place.measured() as opened, place.open_study(folder) as study:
        assert study.num_observations == NUM_ADDED
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return [
        {"what": "add", "rows": NUM_ADDED, **added, "folder_bytes": size},
        {"what": "open", "rows": NUM_ADDED, **opened},
    ]


def resume(folder: Path, place: Place) -> list[dict[str, Any]]:
    """Rounds that keep the hyperparameters: one after the other, and after the study was closed."""

    def one_round(study: Study) -> None:
        batch = study.ask(RESUMED_Q)
        study.tell(batch.ids, value(batch.X))

    with place.open_study(folder) as study:
        study.add_data(*rows(RESUMED_ROWS))
        one_round(study)
        with place.measured() as ordinary:
            one_round(study)
    with place.measured() as resumed, place.open_study(folder) as study:
        one_round(study)
    common = {"rows": RESUMED_ROWS, "q": RESUMED_Q}
    return [
        {"what": "ordinary round", **common, **ordinary},
        {"what": "open and round", **common, **resumed},
    ]


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--parts", default="ask,add,resume")
    parser.add_argument("--rows", default="5000,20000", help="of the asks")
    parser.add_argument("--q", type=int, default=500)
    parser.add_argument("--dtype", default="float64", choices=["float32", "float64"])
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    place = Place(torch.device(arguments.device), getattr(torch, arguments.dtype))
    console = Console()
    parts = arguments.parts.split(",")
    record: dict[str, Any] = {"benchmark": "study", "runs": []}
    if arguments.out is not None and arguments.out.exists():
        record = read_record(arguments.out)

    def keep(runs: list[dict[str, Any]]) -> None:
        environment = describe_environment(place.device)
        for run in runs:
            console.print(run)
            same = ("what", "rows", "q", "dtype")
            record["runs"] = [
                old
                for old in record["runs"]
                if old["environment"]["device"] != environment["device"]
                or any(old.get(key) != run.get(key) for key in same)
            ]
            record["runs"].append({**run, "environment": environment})
        if arguments.out is not None:
            write_record(arguments.out, record)

    with tempfile.TemporaryDirectory() as folder:
        if "add" in parts:
            keep(add(Path(folder) / "add", place))
        if "resume" in parts:
            keep(resume(Path(folder) / "resume", place))
        if "ask" in parts:
            for n in map(int, arguments.rows.split(",")):
                keep(
                    [
                        {
                            "what": "ask",
                            **ask(Path(folder) / f"ask{n}", n, arguments.q, place, console),
                        }
                    ]
                )


if __name__ == "__main__":
    main()
