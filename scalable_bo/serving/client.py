"""A study that a server has, for workers on any machine. It needs the standard library alone.

Notation: q points.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import random
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self
from urllib.parse import urlsplit

from scalable_bo.evaluation.evaluator import (
    MAX_REASON,
    Evaluation,
    LateError,
    storable,
    whole_numbers,
)
from scalable_bo.evaluation.processes import SECONDS_BETWEEN_LOOKS
from scalable_bo.serving.tokens import read_token
from scalable_bo.space.quoting import quote
from scalable_bo.storage.points import Point

logger = logging.getLogger(__name__)

SECONDS_OF_A_REQUEST = 60.0
FIRST_PAUSE = 0.1  # seconds before what failed is repeated; twice as long before each further time
LONGEST_PAUSE = 10.0
SILENT_PAUSE = 1.0  # before a longer one the caller is told what it waits for
REPEATED = frozenset({429, 500, 502, 503, 504})  # answers after which a request is made again
LONGEST_REASON = 4 * MAX_REASON  # characters that a server takes


@dataclass(frozen=True)
class RemoteBatch:
    """Points to evaluate.

    Attributes:
        ids: numbers to ``tell`` the values by.
        params: dicts of parameter values.
    """

    ids: list[int]
    params: list[dict[str, Any]]


class RemoteStudy:
    """A study behind a server, to ask and to tell as a ``Study``; for any thread.

    Requests that get no answer, because the network or the server is down, are repeated, longer and
    longer apart. To tell the same again does nothing, so that no value is lost or counted twice.
    Points are leased: keep the leases of long evaluations by ``holding``.

    Args:
        url: of the server, such as "https://host:8765".
        token: of the server.
        token_file: a file with it, in place of ``token``.
        worker: the name under which points are leased; one of this object's own if ``None``.
        patience: seconds that a request is repeated for.
        certificate: a file with the certificates to trust, in place of the system's.
        plain: send the token over http:// to another machine, where something else encrypts.
    Raises:
        ValueError: if the URL is none, or is that of another machine by http:// and not ``plain``,
            or not exactly one of ``token`` and ``token_file`` is given,
            or others than its owner may read the file.

    ```python
    study = RemoteStudy("http://127.0.0.1:8765", token_file="token")
    batch = study.ask(1)
    study.tell(batch.ids, [loss(params) for params in batch.params])
    ```
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        worker: str | None = None,
        patience: float = 300.0,
        certificate: str | os.PathLike[str] | None = None,
        plain: bool = False,
    ) -> None:
        parts = urlsplit(url) if isinstance(url, str) else urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname or " " in url:
            raise ValueError(
                f"`url` must begin with http(s):// and a host, and hold no blank, got {quote(url)}."
            )
        if parts.scheme == "http" and plain is not True and not is_loopback(parts.hostname):
            raise ValueError(
                f"`url` must begin with https:// for another machine, got {url!r:.200}: whoever is"
                " in between reads the token. Serve with a certificate; or tunnel, such as by `ssh"
                " -L`, and name 127.0.0.1; or set `plain` where something else encrypts."
            )
        if token is None and token_file is not None:
            token = read_token(Path(token_file))
        elif token is None or token_file is not None:
            raise ValueError("Exactly one of `token` and `token_file` must be given.")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise ValueError("`token` must be a text as in the server's file `token`.")
        if not isinstance(patience, int | float) or not patience >= 0:
            raise ValueError(f"`patience` must be at least 0 seconds, got {quote(patience)}.")
        self.worker = worker or f"{socket.gethostname()}.{os.getpid()}.{secrets.token_hex(3)}"
        self.patience = patience
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._tls = None
        if parts.scheme == "https":
            self._tls = naming_files(ssl.create_default_context, cafile=certificate)
        self._idle: SimpleQueue[http.client.HTTPConnection] = SimpleQueue()
        self._outcomes: tuple[str, ...] | None = None
        self._lease = 60.0

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The names of several outcomes; none of one."""
        if self._outcomes is None:
            self._outcomes = tuple(self.status()["outcomes"])
        return self._outcomes

    def status(self) -> dict[str, Any]:
        """Return the numbers of values, failures, pending and leased points, and the best value,
        ``None`` if there is none, or several objectives: see ``best``.
        """
        return dict(self._request("/status"))

    @property
    def num_observations(self) -> int:
        """The number of finite values told or added."""
        return int(self.status()["num_observations"])

    @property
    def num_failed(self) -> int:
        """The number of points told or added as failed."""
        return int(self.status()["num_failed"])

    @property
    def best_value(self) -> float:
        """The best observed feasible value so far; NaN if there is none, or several objectives."""
        value = self.status()["best_value"]
        return math.nan if value is None else float(value)

    @property
    def best_params(self) -> dict[str, Any]:
        """The parameters that are recommended.

        Raises:
            ValueError: as ``Study.best_params``, such as of several objectives, which have a front.
        """
        return dict(self._request("/best_params"))

    def best(self) -> dict[str, Any]:
        """Return what the study has found, in the words of ``Result``: ``params`` that are
        recommended and their ``value``, ``predicted_value`` and ``predicted_std``,
        ``observed_params`` and ``observed_value``; of several objectives the ``front``, its
        ``hypervolume`` and ``reference_point``; and the ``least_violating``, if none is feasible.

        Raises:
            ValueError: if no finite value has been told.
        """
        return dict(self._request("/best"))

    def points(self) -> tuple[Point, ...]:
        """Return all points by id, as ``Study.points``."""
        return tuple(map(Point.from_dict, self._request("/points")))

    def ask(self, q: int = 1, *, stopped: Callable[[], bool] = lambda: False) -> RemoteBatch:
        """Return up to q points to evaluate next, leased to this worker; wait while there are none.
        There are none in the end when all points have been evaluated, or ``stopped()``.
        """
        while not stopped():
            found = self._request("/ask", {"worker": self.worker, "q": q}, stopped=stopped)
            if found is None:
                break
            self._lease = float(found["lease"])
            points = found["points"]
            if points or found["finished"]:
                ids = [point["id"] for point in points]
                return RemoteBatch(ids, [point["params"] for point in points])
            _wait(found["retry_after"] * random.uniform(1.0, 1.5), stopped)
        return RemoteBatch([], [])

    def tell(
        self,
        ids: RemoteBatch | Sequence[int],
        values: Sequence[Any],
        noise: Sequence[float] | float | None = None,
        reasons: Mapping[int, str] | None = None,
        seconds: Sequence[float] | None = None,
    ) -> None:
        """Record values, as ``Study.tell``: what is NaN, infinite or no number has failed, and a
        point with values of some of several outcomes waits for the others. On an error, nothing is
        recorded.

        Raises:
            LateError: if a point was told another value before.
            ValueError: as ``Study.tell``.
            ConnectionError: if the server does not answer in time.
        """
        ids = whole_numbers(ids.ids if isinstance(ids, RemoteBatch) else ids)
        is_number = noise is None or isinstance(noise, int | float)
        variances: Any = [noise] * len(ids) if is_number else noise
        seconds = [math.nan] * len(ids) if seconds is None else seconds
        for argument, given in {"values": values, "noise": variances, "seconds": seconds}.items():
            is_one = not isinstance(given, Collection) or getattr(given, "ndim", 1) == 0
            if is_one or len(given) != len(ids):
                raise ValueError(
                    f"`{argument}` must have one entry for each of the {len(ids)} `ids`, got"
                    f" {quote(given)}."
                )
        pairs = zip(ids, values, strict=True)
        found = [Evaluation.of(id, value, self.outcomes) for id, value in pairs]
        failures = {one.id: one.failure for one in found if one.failure is not None}
        if reasons is not None and not isinstance(reasons, Mapping):
            raise TypeError(f"`reasons` must be a dict of texts by id, got {quote(reasons)}.")
        failures |= reasons or {}
        took: dict[int, dict[str, Any]] = {
            id: {"seconds": number}
            for id, number in zip(ids, seconds, strict=True)
            if not (isinstance(number, float) and math.isnan(number))
        }
        results = [
            {"id": one.id, "value": one.told}
            | ({} if variance is None else {"noise": variance})
            | took.get(one.id, {})
            for one, variance in zip(found, variances, strict=True)
            if one.id not in failures
        ]
        if results:
            self._request("/tell", {"results": results})
        if failures:
            told = [
                {"id": id, "reason": storable(reason, "reason")[:LONGEST_REASON]} | took.get(id, {})
                for id, reason in failures.items()
            ]
            self._request("/fail", {"failures": told})

    def fail(self, id: int, reason: str) -> None:
        """Record that the evaluation of a point failed, and why."""
        (id,) = whole_numbers([id])
        self.tell([id], [math.nan], reasons={id: reason})

    def renew(self, ids: Sequence[int]) -> list[int]:
        """Renew leases; return the points that others have got, or that have been told."""
        body = {"worker": self.worker, "ids": whole_numbers(ids)}
        return [int(id) for id in self._request("/renew", body)["lost"]]

    def release(self, ids: Sequence[int], patience: float = 2.0) -> None:
        """Give points back that are not evaluated after all; another worker gets them."""
        body = {"worker": self.worker, "ids": whole_numbers(ids)}
        self._request("/release", body, patience)

    @contextmanager
    def holding(self, ids: Sequence[int]) -> Iterator[None]:
        """Renew the leases of points, three times in the time of one, during the block."""
        is_over = threading.Event()

        def renew() -> None:
            while not is_over.wait(self._lease / 3):
                try:
                    self.renew(ids)
                except (OSError, ValueError):  # the tell that follows says what is wrong
                    continue

        thread = threading.Thread(target=renew, name="leases", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()

    def close(self) -> None:
        """Close the connections that are open; the next request opens one."""
        with suppress(Empty):
            while True:
                self._idle.get_nowait().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _request(
        self,
        path: str,
        content: Any = None,
        patience: float | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Any:
        """Make a request until it is answered; return ``None`` if it is not and ``stopped()``."""
        end = time.monotonic() + (self.patience if patience is None else patience)
        body = None if content is None else json.dumps(content, default=quote).encode()
        pause = FIRST_PAUSE
        while True:
            try:
                status, answer = self._send(path, body)
            except ssl.SSLCertVerificationError as error:
                remedy = "If the server has a certificate of its own, give it as `certificate`."
                raise ssl.SSLCertVerificationError(error.errno, f"{error}. {remedy}") from error
            except (OSError, http.client.HTTPException) as error:
                trouble = f"{type(error).__name__}: {error}"
                if self._tls is None and isinstance(error, http.client.RemoteDisconnected):
                    trouble += "; a server with TLS needs https://"
            else:
                if status == 200:
                    return json.loads(answer)
                if status == HTTPStatus.CONFLICT:
                    raise LateError(_detail(answer))
                if status == HTTPStatus.UNAUTHORIZED:
                    raise PermissionError(
                        f"The server at {self._host} does not know the token. Copy its file"
                        " `token` again."
                    )
                if status not in REPEATED:
                    raise ValueError(f"The server at {self._host} refused: {_detail(answer)}")
                trouble = f"{status} {_detail(answer)}"
            if time.monotonic() + pause > end:
                raise ConnectionError(
                    f"The server at {self._host} does not answer {path}: {trouble}. Start it again,"
                    " or look at the network; points and values that it has are kept."
                )
            if pause <= SILENT_PAUSE < 2.0 * pause:
                logger.warning(
                    "No answer from %s: %s. The request is repeated for %.0f s more.",
                    self._host if self._port is None else f"{self._host}:{self._port}",
                    trouble,
                    end - time.monotonic(),
                )
            _wait(pause * random.uniform(0.5, 1.0), stopped)
            if stopped():
                return None
            pause = min(2.0 * pause, LONGEST_PAUSE)

    def _send(self, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Send a request by an open connection or, if the server has closed it, by a new one."""
        try:
            return self._send_by(self._idle.get_nowait(), path, body)
        except (Empty, ConnectionError):
            return self._send_by(self._connect(), path, body)

    def _send_by(
        self, connection: http.client.HTTPConnection, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        try:
            method = "GET" if body is None else "POST"
            connection.request(method, self._prefix + path, body, self._headers)
            response = connection.getresponse()
            answer = response.read()
        except BaseException:
            connection.close()
            raise
        self._idle.put(connection)
        return response.status, answer

    def _connect(self) -> http.client.HTTPConnection:
        place = self._host, self._port
        if self._tls is None:
            return http.client.HTTPConnection(*place, timeout=SECONDS_OF_A_REQUEST)
        return http.client.HTTPSConnection(*place, timeout=SECONDS_OF_A_REQUEST, context=self._tls)


def _wait(seconds: float, stopped: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not stopped():
        time.sleep(min(left, SECONDS_BETWEEN_LOOKS))


def _detail(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["detail"])[:500]
    except (ValueError, KeyError, TypeError):
        return "it gave no reason"


def naming_files(load: Callable[..., Any], **files: Any) -> Any:
    """Return ``load(**files)``, whose errors do not say which certificate or key is wrong."""
    try:
        return load(**files)
    except (OSError, TypeError) as error:  # a TypeError if there is a key alone
        key = ", with the server's key unless `key` is one" if "keyfile" in files else ""
        raise OSError(
            f"`certificate` must be a PEM file{key}, got"
            f" {' and '.join(map(str, files.values()))}: {error}. Correct the path."
        ) from error


def is_loopback(host: str) -> bool:
    """Whether what goes to a host stays on this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
