"""The process that serves a study: its socket, its token, and how it ends.

It keeps those connections that make a request soon, and never so many that a stranger shuts others
out.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import ssl
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Self

from scalable_bo._packages import require
from scalable_bo.evaluation.interruption import handling
from scalable_bo.evaluation.processes import SECONDS_TO_END
from scalable_bo.serving.app import make_app
from scalable_bo.serving.client import SECONDS_OF_A_REQUEST, is_loopback, naming_files
from scalable_bo.serving.leased_study import LeasedStudy
from scalable_bo.serving.tokens import new_token, read_or_make_token
from scalable_bo.study.study import Study
from surrogates import checks

require("uvicorn", extra="serve", user="`scalable-bo serve`")

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol


class Server:
    """Serves a study to workers, and to those who look at it in a browser.

    ``run`` serves until the process is to end; as a context manager it serves from a thread. In
    its process the server alone asks and tells the study; the one who opened it closes it.

    Args:
        study: to serve.
        host: the address to listen at.
        port: 0 for any that is free; see ``url``.
        token_file: of the token, made if it is not there; ``None`` for a token of this server
            alone, see ``token``.
        lease: seconds after which a worker that is not heard of loses its point to the next one.
        batch: points that are asked for at once, at least; more where workers are quick.
        evaluations: points of the study in all, those before counted in; ``None`` for no limit.
        certificate: a file with the certificate of this machine, for TLS.
        key: a file with its key; ``None`` if it is in ``certificate``.
        plain: serve other machines without TLS, where something before this server encrypts.
    Attributes:
        leased: the study, whose points are given out.
        token: what workers need, and browsers as a password.
        url: where it is served.
    Raises:
        TypeError, ValueError: if an argument is out of range, or other machines were to be served
            without TLS.
        OSError: if the address cannot be listened at, or a file not read.
        ImportError: without the packages of the extra ``serve``.
    """

    def __init__(
        self,
        study: Study,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token_file: Path | None = None,
        lease: float = 60.0,
        batch: int = 8,
        evaluations: int | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        plain: bool = False,
    ) -> None:
        if not isinstance(study, Study):
            raise TypeError(
                f"`study` must be a Study, got {study!r:.200}. Open a folder by `Study.open(path)`."
            )
        port = checks.integer("port", port, 0)
        if certificate is None and not plain and not is_loopback(host):
            raise ValueError(
                f"`certificate` must be given to serve other machines at {host!r}, or whoever is in"
                " between reads the token. Give a certificate; or serve 127.0.0.1 through a tunnel"
                " such as `ssh -L`; or set `plain` where something before this server encrypts."
            )
        context = None
        if certificate is not None or key is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            naming_files(context.load_cert_chain, certfile=certificate, keyfile=key)
        self.token = new_token() if token_file is None else read_or_make_token(token_file)
        self._socket = _listen(host, port)
        port = self._socket.getsockname()[1]
        scheme = "http" if certificate is None else "https"
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{shown}:{port}"
        with ExitStack() as undo:
            undo.callback(self._socket.close)
            self.leased = LeasedStudy(study, lease=lease, batch=batch, evaluations=evaluations)
            undo.callback(self.leased.close)
            config = uvicorn.Config(
                make_app(self.leased, self.token),
                lifespan="off",
                ws="none",
                log_config=None,
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                http=Connection,
                timeout_keep_alive=int(1.25 * SECONDS_OF_A_REQUEST),  # longer than a client waits
                timeout_graceful_shutdown=int(SECONDS_TO_END),
            )
            config.load()
            config.ssl = context  # by its files, Uvicorn would ask for a passphrase once more
            undo.pop_all()
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    def run(self) -> bool:
        """Serve until Ctrl-C, SIGTERM or SIGHUP: requests that are being answered are finished,
        and what was told is stored. Return whether all threads have ended.
        """

        def end(number: int, frame: FrameType | None) -> None:
            self._server.should_exit = True

        # Uvicorn raises the first two again when it has ended, which then do nothing
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        try:
            with handling(numbers, end):
                self._server.run(sockets=[self._socket])
        finally:
            is_over = self.close()
        return is_over

    def close(self) -> bool:
        """End, in whatever thread it serves; return as ``run``."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._socket.close()
        return self.leased.close()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="server", daemon=True
        )
        self._thread.start()
        while self._thread.is_alive() and not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def most_connections(most: int = 4000, share_of_files: float = 0.5) -> int:
    """Return how many connections to keep: ``most``, or a share of the files that may be open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files == resource.RLIM_INFINITY else min(most, int(share_of_files * files))


class Connection(H11Protocol):
    """A connection that is ended where it makes no request, or others would have no room.

    Attributes:
        patience: seconds until all of the head of its first request must have come.
        share_of_an_address: of the connections, at most; all workers behind a tunnel have the same
            address.
    """

    patience = 10.0
    share_of_an_address = 0.75

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most = most_connections()
        of_address = self.client and self.client[0]
        alike = sum(other.client and other.client[0] == of_address for other in self.connections)  # type: ignore[union-attr, misc]
        if len(self.connections) > most or alike > self.share_of_an_address * most:
            transport.abort()
            return
        self.loop.call_later(self.patience, self._end_if_silent)

    def _end_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.abort()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise OSError(f"{host}, port {port} cannot be listened at: {error}.") from error
    # Connections inherit it. Without, the body of an answer, which is written after the head, waits
    # until the other side has acknowledged the head, 40 ms later.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
