"""How quickly a server answers a thousand workers: asks and tells over the loopback device.

The study has ``--rows`` values already. Each simulated worker asks for a point, waits as long as an
evaluation takes, an exponential time with the mean ``--seconds``, tells its value and asks again.
Points come from a pool that is asked for ahead; with ``--points design`` of the initial design, so
that the server alone is measured, with ``--points model`` by the surrogate, which is refreshed on
the same machine meanwhile. The first ``--batch`` is waited for. Requests are counted for
``--duration`` seconds, once the workers have come and had time for two evaluations. Times are those
that a worker sees.

    python benchmarks/serve.py --workers 1000 --duration 30 \\
        --out benchmarks/results/serve.json

A record keeps the runs that it has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch

from scalable_bo.experiments.records import read_record
from scalable_bo.experiments.scripts import script_parser, write_benchmark
from scalable_bo.serving.server import Server
from scalable_bo.space.space import Float, Space
from scalable_bo.study.study import Study

PERCENTILES = (50, 90, 99)
SECONDS_BETWEEN_LINES = 5.0
Times = dict[str, list[tuple[float, float]]]  # when requests began and what they took, by kind
DIM = 8


class Connection:
    """A worker's connection, which stays open."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._place = parts.hostname, parts.port
        self._head = f"Host: {parts.hostname}\r\nAuthorization: Bearer {token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, content: Mapping[str, Any]) -> tuple[int, Any]:
        """Return the status and the content of an answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._place)
        reader, writer = self._streams
        body = json.dumps(content).encode()
        head = f"{self._head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(f"POST {path} HTTP/1.1\r\n{head}".encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        answer = await reader.readexactly(int(fields["content-length"]))
        return int(lines[0].split(" ")[1]), json.loads(answer)

    async def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()


class Worker:
    """A simulated worker.

    Args:
        name: of the worker.
        connection: its own.
        times: receives when each request began and the seconds it took, by kind.
    """

    def __init__(self, name: str, connection: Connection, times: Times) -> None:
        self._name = name
        self._connection = connection
        self._times = times

    async def work(self, seconds: float, end: float) -> None:
        """Ask and tell until ``end``, with evaluations of so many seconds in the mean."""
        point: dict[str, Any] | None = None
        wait = random.expovariate(1.0 / seconds)
        while time.perf_counter() + wait < end:
            await asyncio.sleep(wait)
            if point is not None:
                result = {"id": point["id"], "value": sum(point["params"].values())}
                await self._post("tell", {"results": [result]})
            found = await self._post("ask", {"worker": self._name})
            point = found["points"][0] if found["points"] else None
            wait = (
                found["retry_after"] * random.uniform(1.0, 1.5)
                if point is None
                else random.expovariate(1.0 / seconds)
            )

    async def _post(self, kind: str, content: Mapping[str, Any]) -> Any:
        start = time.perf_counter()
        status, answer = await self._connection.post(f"/{kind}", content)
        assert status == 200, answer
        is_empty = kind == "ask" and not answer["points"]
        taken = time.perf_counter() - start
        self._times["empty" if is_empty else kind].append((start, taken))
        return answer


async def work_together(
    url: str, token: str, num_workers: int, seconds: float, duration: float
) -> tuple[Times, float]:
    """Let workers work until ``duration`` is over, after the time of two evaluations; return what
    the requests took, and when those begin that count.
    """
    times: Times = {"ask": [], "tell": [], "empty": []}
    begin = time.perf_counter() + 2.0 * seconds
    connections = [Connection(url, token) for _ in range(num_workers)]
    workers = [
        Worker(f"worker-{number}", connection, times)
        for number, connection in enumerate(connections)
    ]
    shown = asyncio.create_task(show_progress(times))
    await asyncio.gather(*(worker.work(seconds, begin + duration) for worker in workers))
    shown.cancel()
    await asyncio.gather(*(connection.close() for connection in connections))
    return times, begin


async def show_progress(times: Times) -> None:
    """Say again and again how many requests were answered."""
    start = time.perf_counter()
    while True:
        await asyncio.sleep(SECONDS_BETWEEN_LINES)
        counts = ", ".join(f"{len(found)} {name}" for name, found in times.items())
        say(f"{time.perf_counter() - start:.0f} s: {counts}")


def put_load(
    answers: Any, url: str, token: str, num_workers: int, seconds: float, duration: float
) -> None:
    """Run the workers in this process."""
    answers.put(asyncio.run(work_together(url, token, num_workers, seconds, duration)))


def prepare(server: Server, batch: int, patience: float) -> float:
    """Wait until so many points are there, and return how long that took.

    Raises:
        TimeoutError: if they are not, after ``patience`` seconds.
    """
    start = time.perf_counter()
    next_line = SECONDS_BETWEEN_LINES
    while server.desk.num_waiting < batch:
        elapsed = time.perf_counter() - start
        if elapsed > patience:
            raise TimeoutError(
                f"The first {batch} points are not there after {patience:g} s. Use a smaller"
                " `--batch`, fewer `--rows`, or more `--patience`."
            )
        if elapsed > next_line:
            say(f"{elapsed:.0f} s: the first {batch} points are asked for")
            next_line += SECONDS_BETWEEN_LINES
        time.sleep(0.05)
    return time.perf_counter() - start


def say(line: str) -> None:
    """Write a line of progress."""
    print(line, file=sys.stderr, flush=True)


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return how many asks and tells a second there were, what they took, and the processor time of
    the server for each.
    """
    space = Space(**{f"x{k}": Float(0.0, 1.0) for k in range(DIM)})
    is_design = arguments.points == "design"
    num_initial = 10**9 if is_design else None
    study = Study(
        space,
        maximize=True,
        seed=0,
        path=folder,
        num_initial=num_initial,
        device=arguments.device,
    )
    X = torch.rand(
        arguments.rows, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    study.add_data(X, X.sum(1))
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with Server(study, lease=600.0, batch=arguments.batch) as server:
        prepared = prepare(server, arguments.batch, arguments.patience)
        asks = study.num_asks
        busy = time.process_time()
        load = context.Process(
            target=put_load,
            args=(
                answers,
                server.url,
                server.token,
                arguments.workers,
                arguments.seconds,
                arguments.duration,
            ),
        )
        load.start()
        times, begin = answers.get()
        load.join()
        busy = time.process_time() - busy
        told = study.num_observations - arguments.rows
    study.close()
    assert told == len(times["tell"])
    taken = {
        kind: [seconds for at, seconds in found if at >= begin] for kind, found in times.items()
    }
    record: dict[str, Any] = {
        "asks_a_second": len(taken["ask"]) / arguments.duration,
        "tells_a_second": len(taken["tell"]) / arguments.duration,
        "empty_asks": len(taken["empty"]),
        "cpu_ms_a_request": 1e3 * busy / sum(map(len, times.values())),
        "load_of_the_machine": os.getloadavg()[0],
        "asks_of_the_study": study.num_asks - asks,
        "seconds_to_prepare": prepared,
    }
    for name, found in taken.items():
        if found:
            levels = np.percentile(found, PERCENTILES) * 1e3
            record[f"{name}_ms"] = dict(zip(map(str, PERCENTILES), levels.tolist(), strict=True))
    return record


def main() -> None:
    """Measure, print and write a record."""
    parser = script_parser(__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0, help="mean of an evaluation")
    parser.add_argument("--duration", type=float, default=30.0)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument(
        "--patience", type=float, default=600.0, help="seconds to wait for the first batch"
    )
    parser.add_argument("--points", choices=["design", "model"], default="design")
    parser.add_argument(
        "--device", default="cpu", help="of the surrogate, which only --points model asks"
    )
    arguments = parser.parse_args()
    if arguments.points == "design" and arguments.device != "cpu":
        parser.error("--device needs --points model: points of the design need no surrogate.")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments, Path(folder) / "study")
    settings = {name: value for name, value in vars(arguments).items() if name != "out"}
    print(json.dumps({**settings, **found}, indent=1))
    runs = [*read_record(arguments.out)["runs"]] if arguments.out and arguments.out.exists() else []
    write_benchmark(
        arguments.out, "serve", device=arguments.device, runs=[*runs, {**settings, **found}]
    )
    sys.stdout.flush()
    os._exit(0)  # an ask may compute on in a thread, whose points nobody will get


if __name__ == "__main__":
    main()
