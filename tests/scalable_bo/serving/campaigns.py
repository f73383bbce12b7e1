"""What is done to a server for long: kills at random instants, and requests of every wrong kind."""

import json
import os
import random
import signal
import socket
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from scalable_bo.evaluation.evaluator import Evaluation
from scalable_bo.serving import middleware
from scalable_bo.serving.client import RemoteStudy
from scalable_bo.serving.middleware import Allowance
from scalable_bo.serving.server import Server
from scalable_bo.serving.tokens import new_token
from scalable_bo.serving.worker import work
from scalable_bo.space.space import Float, Space
from scalable_bo.study.study import Study
from tests.forked import CONTEXT
from tests.scalable_bo.serving.requests import send
from tests.waiting import eventually

SPACE = Space(x=Float(0.0, 1.0))
HTML = ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "'\"><svg onload=alert(1)>"]


def serve(path: Path, port: int) -> None:
    """Serve a study until a signal ends it."""
    torch.set_num_threads(1)
    study = Study(SPACE, maximize=True, path=path, num_initial=10**6)
    server = Server(study, port=port, token_file=path / "token", lease=2.0, batch=4)
    (path.parent / "url").write_text(server.url)
    server.run()
    study.close()
    os._exit(0)


def work_and_log(url: str, path: Path) -> None:
    """Evaluate points, and note each value that has been told."""
    log = os.open(path.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    study = RemoteStudy(url, token_file=path / "token", patience=120.0)
    tell = study.tell

    def tell_and_log(ids: Any, values: Any, **options: Any) -> None:
        tell(ids, values, **options)
        os.write(log, f"{ids[0]} {values[0]!r}\n".encode())

    study.tell = tell_and_log  # type: ignore[method-assign, assignment]

    def evaluate(id: int, params: dict[str, Any]) -> Evaluation:
        time.sleep(random.uniform(0.0, 0.05))
        return Evaluation.of(id, params["x"])

    work(study, evaluate)


def kill_at_random(path: Path, num_kills: int) -> Counter[str]:
    """Serve a study to two workers, and end one of the three processes again and again; return how
    often, and how many values were told.
    """
    instants = random.Random(0)
    counts: Counter[str] = Counter()
    (path.parent / "url").unlink(missing_ok=True)
    server = CONTEXT.Process(target=serve, args=(path, 0))
    server.start()
    url = eventually(lambda: read(path.parent / "url"))
    port = int(url.rpartition(":")[2])
    workers = [start_worker(url, path) for _ in range(2)]
    try:
        for _ in range(num_kills):
            enough = num_told(path) + instants.choice([0, 1, 5])
            eventually(lambda enough=enough: num_told(path) >= enough)
            time.sleep(instants.uniform(0.0, 0.2))
            number = instants.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            if instants.random() < 0.5:
                end(server, number)
                counts["server"] += 1
                server = CONTEXT.Process(target=serve, args=(path, port))
                server.start()
            else:
                end(workers.pop(0), number)
                counts["worker"] += 1
                workers.append(start_worker(url, path))
        enough = num_told(path) + 5
        eventually(lambda: num_told(path) >= enough)  # all of it goes on
    finally:
        for process in (*workers, server):
            end(process, signal.SIGKILL)
    counts["told"] = num_told(path)
    return counts


def start_worker(url: str, path: Path) -> BaseProcess:
    process = CONTEXT.Process(target=work_and_log, args=(url, path))
    process.start()
    return process


def end(process: BaseProcess, number: int) -> None:
    assert process.pid is not None
    os.kill(process.pid, number)
    process.join(300)
    assert not process.is_alive()


def told(path: Path) -> dict[int, float]:
    """Return the values that workers have seen acknowledged."""
    lines = (read(path.with_suffix(".log")) or "").splitlines()
    return {int(id): float(value) for id, value in (line.split() for line in lines)}


def num_told(path: Path) -> int:
    return (read(path.with_suffix(".log")) or "").count("\n")


def read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


class Fuzz:
    """Requests of every wrong kind, with a count of what was tried and how it was answered.

    Args:
        server: with some points that are pending.
        old_token: that the server had before.
    """

    def __init__(self, server: Server, old_token: str, seed: int = 0) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self._server = server
        self._token = server.token
        self._old_token = old_token
        self._random = random.Random(seed)
        behind: Any = server._server.config.app
        behind._strangers = behind._holders = Allowance(float("inf"), 0.0)  # or all were put off

    def run(self, num_requests: int) -> None:
        """Make requests, and check each answer."""
        kinds = [self.token, self.noise, self.shape, self.traversal, self.markup, self.wire]
        for number in range(num_requests):
            kind = kinds[number % len(kinds)]
            # Bodies that are too large take long to send
            kind = self.oversized if number % 100 == 99 else kind
            name, status, content, allowed = kind()
            self.counts[name, status] += 1
            assert status in allowed, (name, status, content[:300])
            assert self._token.encode() not in content

    def token(self) -> tuple[str, int, bytes, set[int]]:
        """Return what a request with a wrong token, or none, was answered."""
        token = self._token
        wrong = self._random.choice(
            [
                {},
                {"Authorization": f"Bearer {new_token()}"},
                {"Authorization": f"Bearer {self._old_token}"},
                {"Authorization": f"Bearer {token[: self._random.randrange(len(token))]}"},
                {"Authorization": token},
                {"Authorization": f"Bearer {token}, Bearer {token}"},
                {"Authorization": "Basic " + self._random.choice(["", "?", "QQ==", "Og=="])},
                {"Authorization": f"Digest {token}"},
                {"Cookie": f"token={token}", "X-Token": token},
            ]
        )
        method, path = self._random.choice(
            [
                ("GET", "/"),
                ("GET", "/status"),
                ("GET", "/best"),
                ("POST", "/ask"),
                ("POST", "/tell"),
            ]
        )
        if method == "POST" and self._random.random() < 0.3:  # a browser's password
            wrong = {"Authorization": "Basic " + b64encode(f"a:{token}".encode()).decode()}
        status, content, _ = send(self._server.url, path, method=method, body=b"{}", headers=wrong)
        return "token", status, content, {401}

    def noise(self) -> tuple[str, int, bytes, set[int]]:
        """Return what a body of random bytes was answered."""
        right = json.dumps({"results": [{"id": 0, "value": 0.5}]}).encode()
        body = self._random.choice(
            [
                self._random.randbytes(self._random.randrange(2000)),
                right[: self._random.randrange(len(right))],
                b"[" * self._random.randrange(10_000),
                b'{"results": [{"id": 0, "value": ' + b"9" * 6000 + b"}]}",
                right.replace(b"results", b"resu\xff\xfelts"),
            ]
        )
        return "noise", *self._post(self._random.choice(["/tell", "/ask", "/fail"]), body)

    def shape(self) -> tuple[str, int, bytes, set[int]]:
        """Return what JSON of another shape was answered."""
        path = self._random.choice(["/tell", "/ask", "/fail", "/renew", "/release"])
        content = self._json(3)
        if self._random.random() < 0.5:
            key = self._random.choice(["results", "failures", "ids", "worker", "q"])
            content = {key: content}
        return "shape", *self._post(path, json.dumps(content).encode())

    def traversal(self) -> tuple[str, int, bytes, set[int]]:
        """Return what a path that leads out, or nowhere, was answered."""
        step = self._random.choice(["../", "..%2f", "%2e%2e/", "..%5c", "....//", "%00", "a/"])
        path = (
            "/"
            + step * self._random.randrange(1, 12)
            + self._random.choice(["etc/passwd", "token", "study.sqlite", "ask", "page.js"])
        )
        method = self._random.choice(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
        status, content, _ = send(self._server.url, path, method=method, token=self._token)
        return "traversal", status, content, {404, 405}

    def markup(self) -> tuple[str, int, bytes, set[int]]:
        """Return what HTML in the texts of a request was answered."""
        text = self._random.choice(HTML)
        path, content = self._random.choice(
            [
                ("/ask", {"worker": text}),
                ("/renew", {"worker": text, "ids": []}),
                ("/tell", {"results": [{"id": text, "value": 1.0}]}),
                ("/tell", {"results": [{"id": 0, "value": {text: 1.0}}]}),
                ("/tell", {text: 1}),
            ]
        )
        return "markup", *self._post(path, json.dumps(content).encode())

    def wire(self) -> tuple[str, int, bytes, set[int]]:
        """Return what something that is no HTTP was answered; 0 if the server closed."""
        parts = urlsplit(self._server.url)
        auth = b"Authorization: Bearer " + self._token.encode() + b"\r\n"
        data = self._random.choice(
            [
                self._random.randbytes(self._random.randrange(1, 3000)) + b"\r\n\r\n",
                b"GET / HTTP/9.9\r\n\r\n",
                b"GET /status HTTP/1.1\r\nHost: x\r\n" + b"A: " + b"b" * 200_000 + b"\r\n\r\n",
                b"POST /ask HTTP/1.1\r\nHost: x\r\n" + auth + b"Content-Length: -5\r\n\r\n",
                b"POST /ask HTTP/1.1\r\nHost: x\r\n"
                + auth
                + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
                b"POST /ask HTTP/1.1\r\nHost: x\r\n" + auth + auth + b"Content-Length: 0\r\n\r\n",
            ]
        )
        with socket.create_connection((parts.hostname, parts.port), timeout=300) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(2**16)
            except OSError:
                answer = b""
        status = int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/") else 0
        return "wire", status, answer, {0, 400, 401, 404, 422, 431}

    def oversized(self) -> tuple[str, int, bytes, set[int]]:
        """Return what a body above the limit was answered."""
        body = (
            b'{"worker": "' + b"a" * (middleware.MOST_BYTES + self._random.randrange(10**6)) + b'"}'
        )
        status, content, _ = self._post("/ask", body)
        return "oversized", status, content, {413}

    def _post(self, path: str, body: bytes) -> tuple[int, bytes, set[int]]:
        headers = {"Content-Type": self._random.choice(["application/json", "text/plain"])}
        status, content, _ = send(
            self._server.url, path, method="POST", token=self._token, body=body, headers=headers
        )
        return status, content, {400, 413, 422}

    def _json(self, depth: int) -> Any:
        """Return JSON without sense, in which every value is of a kind that no request has."""
        kinds: list[Callable[[], Any]] = [
            lambda: None,
            lambda: self._random.choice(HTML),
            lambda: self._random.choice([-1, 2**70, 10**308]),
            lambda: [self._json(depth - 1) for _ in range(self._random.randrange(1, 4))],
            lambda: {self._random.choice(HTML): self._json(depth - 1)},
        ]
        return self._random.choice(kinds if depth else kinds[:3])()
