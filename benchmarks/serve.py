"""How quickly a server answers a thousand workers: asks and tells over the loopback device.

The study has ``--rows`` values already. Each simulated worker asks for a point, waits as long as an
evaluation takes, a random time with the mean ``--seconds``, tells its value and asks again. Points
come from a pool that is asked for ahead; with ``--points design`` of the initial design, so that
the server alone is measured, with ``--points model`` by the surrogate, which is refreshed on the
same machine meanwhile. Times are those that a worker sees.

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


async def work(
    name: str, connection: Connection, seconds: float, end: float, times: dict[str, list[float]]
) -> None:
    """Be a worker until ``end``, and note what each request took."""
    await asyncio.sleep(random.uniform(0.0, seconds))
    while time.perf_counter() < end:
        start = time.perf_counter()
        status, found = await connection.post("/ask", {"worker": name})
        assert status == 200, found
        if not found["points"]:
            times["empty"].append(time.perf_counter() - start)
            await asyncio.sleep(found["retry_after"] * random.uniform(1.0, 1.5))
            continue
        times["ask"].append(time.perf_counter() - start)
        await asyncio.sleep(random.expovariate(1.0 / seconds))
        (point,) = found["points"]
        result = {"id": point["id"], "value": sum(point["params"].values())}
        start = time.perf_counter()
        status, said = await connection.post("/tell", {"results": [result]})
        assert status == 200, said
        times["tell"].append(time.perf_counter() - start)


async def work_together(
    url: str, token: str, num_workers: int, seconds: float, duration: float
) -> dict[str, list[float]]:
    """Return what the requests of all workers took."""
    times: dict[str, list[float]] = {"ask": [], "tell": [], "empty": []}
    end = time.perf_counter() + duration
    connections = [Connection(url, token) for _ in range(num_workers)]
    workers = (
        work(f"worker-{number}", connection, seconds, end, times)
        for number, connection in enumerate(connections)
    )
    await asyncio.gather(*workers)
    await asyncio.gather(*(connection.close() for connection in connections))
    return times


def put_load(
    answers: Any, url: str, token: str, num_workers: int, seconds: float, duration: float
) -> None:
    """Run the workers in this process."""
    start = time.perf_counter()
    times = asyncio.run(work_together(url, token, num_workers, seconds, duration))
    answers.put((times, time.perf_counter() - start))


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return how many asks and tells a second there were, what they took, and the processor time of
    the server for each.
    """
    space = Space(**{f"x{k}": Float(0.0, 1.0) for k in range(DIM)})
    is_design = arguments.points == "design"
    num_initial = 10**9 if is_design else None
    study = Study(space, maximize=True, seed=0, path=folder, num_initial=num_initial)
    X = torch.rand(
        arguments.rows, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    study.add_data(X, X.sum(1))
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with Server(study, lease=600.0, batch=arguments.batch) as server:
        start = time.perf_counter()
        while server.desk.num_waiting < arguments.batch:
            time.sleep(0.05)
        prepared = time.perf_counter() - start
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
        times, elapsed = answers.get()
        load.join()
        busy = time.process_time() - busy
        told = study.num_observations - arguments.rows
    study.close()
    assert told == len(times["tell"])
    record: dict[str, Any] = {
        "asks_a_second": len(times["ask"]) / elapsed,
        "tells_a_second": len(times["tell"]) / elapsed,
        "empty_asks": len(times["empty"]),
        "cpu_ms_a_request": 1e3 * busy / sum(map(len, times.values())),
        "load_of_the_machine": os.getloadavg()[0],
        "asks_of_the_study": study.num_asks - asks,
        "seconds_to_prepare": prepared,
    }
    for name, found in times.items():
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
    parser.add_argument("--points", choices=["design", "model"], default="design")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(arguments, Path(folder) / "study")
    settings = {name: value for name, value in vars(arguments).items() if name != "out"}
    print(json.dumps({**settings, **found}, indent=1))
    runs = [*read_record(arguments.out)["runs"]] if arguments.out and arguments.out.exists() else []
    write_benchmark(arguments.out, "serve", runs=[*runs, {**settings, **found}])


if __name__ == "__main__":
    main()
