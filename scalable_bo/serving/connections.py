"""Which connections a server keeps: those that make a request soon, and never so many that a
stranger shuts others out.
"""

from __future__ import annotations

import asyncio
import resource

from uvicorn.protocols.http.h11_impl import H11Protocol


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
