"""Which connections a server keeps: those that make a request soon, and never so many that a
stranger shuts others out.
"""

from __future__ import annotations

import asyncio
import resource

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS_TO_REQUEST = 10.0  # from its beginning until all of the head of its first request has come
SHARE_OF_AN_ADDRESS = 0.75  # of the connections: all workers behind a tunnel have the same address


def most_connections(most: int = 4000, share_of_files: float = 0.5) -> int:
    """Return how many connections this process keeps: ``most``, or a share of the files that it may
    open.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if files == resource.RLIM_INFINITY else min(most, int(share_of_files * files))


class Connection(H11Protocol):
    """A connection that is ended where it makes no request, or others would have no room."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most = most_connections()
        of_address = self.client and self.client[0]
        alike = sum(other.client and other.client[0] == of_address for other in self.connections)  # type: ignore[union-attr, misc]
        if len(self.connections) > most or alike > SHARE_OF_AN_ADDRESS * most:
            transport.abort()
            return
        self.loop.call_later(SECONDS_TO_REQUEST, self._end_if_silent)

    def _end_if_silent(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.abort()
