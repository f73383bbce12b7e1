"""What stands before a server's application: the token, limits of requests, answers' headers."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import time
from collections import OrderedDict
from typing import Any

from scalable_bo._packages import require
from scalable_bo.evaluation.evaluator import MOST_BYTES

require("fastapi", extra="serve", user="`scalable-bo serve`")

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Answers that say that a request was wrong; 409 says that it came too late
WRONG = frozenset({400, 401, 404, 405, 408, 413, 415, 422})
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        b" img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


class Allowance:
    """How many wrong requests each address may still make.

    Args:
        burst: at once.
        per_second: that come back.
        most_addresses: that are remembered, the latest ones.
    """

    def __init__(self, burst: float, per_second: float, most_addresses: int = 10_000) -> None:
        self._burst = burst
        self._per_second = per_second
        self._most_addresses = most_addresses
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def charge(self, address: str) -> None:
        """Count a wrong request; of too many addresses, the oldest are forgotten."""
        self._left[address] = max(self.of(address) - 1.0, 0.0), time.monotonic()
        self._left.move_to_end(address)
        if len(self._left) > self._most_addresses:
            self._left.popitem(last=False)

    def of(self, address: str) -> float:
        """Return how many wrong requests an address has left now."""
        if address not in self._left:
            return self._burst
        left, at = self._left[address]
        return min(self._burst, left + self._per_second * (time.monotonic() - at))


class TokenMiddleware:
    """Lets requests with the token through to an application, and ``GET /health`` without.

    The token comes as a bearer's or, to look at the page in a browser, as the password of HTTP's
    basic authentication; a browser sends that by itself, wherever a request comes from, so it does
    not allow to change anything. Who sends too many wrong requests, with or without the token, is
    put off for a moment; those with the token are counted apart.

    Args:
        patience: seconds in which all of a body must have come.
    """

    def __init__(self, app: ASGIApp, token: str, patience: float = 30.0) -> None:
        self._app = app
        self._patience = patience
        self._digest = _digest(token.encode())
        self._strangers = Allowance(burst=20, per_second=1.0)
        self._holders = Allowance(burst=100, per_second=10.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # there is nothing else to connect to
        address = (scope.get("client") or ("",))[0]
        if scope["path"] == "/health" and scope["method"] == "GET":
            await answer(send, 200, {"status": "ok"})
            return
        is_holder = self._holds_token(scope)
        allowance = self._holders if is_holder else self._strangers

        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
                if message["status"] in WRONG:
                    allowance.charge(address)
            await send(message)

        if allowance.of(address) < 1.0:
            await answer(send, 429, {"detail": "too many wrong requests"}, (b"retry-after", b"1"))
            return
        if not is_holder:
            realm = (b"www-authenticate", b'Basic realm="scalable_bo: the token is the password"')
            await answer(send_and_count, 401, {"detail": "the token is missing or wrong"}, realm)
            return
        status, body = await _read(scope, receive, self._patience)
        if status:
            detail = "the body is too large" if status == 413 else "the body did not come"
            await answer(send_and_count, status, {"detail": detail}, (b"connection", b"close"))
            return

        async def replay() -> Message:
            nonlocal body
            part, body = body, b""
            return {"type": "http.request", "body": part, "more_body": False}

        await self._app(scope, replay, send_and_count)

    def _holds_token(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, rest = given[0].partition(b" ")
        if scheme.lower() == b"basic" and scope["method"] in ("GET", "HEAD"):
            try:
                rest = base64.b64decode(rest, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(_digest(rest), self._digest)


async def answer(
    send: Send, status: int, content: dict[str, Any], *headers: tuple[bytes, bytes]
) -> None:
    """Send a short answer in JSON."""
    body = json.dumps(content).encode()
    fixed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})


async def _read(scope: Scope, receive: Receive, patience: float) -> tuple[int, bytes]:
    """Return a body, or the status of what is wrong with it."""
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    if lengths and (not lengths[0].isdigit() or int(lengths[0][:20]) > MOST_BYTES):
        return 413, b""
    body = bytearray()
    try:
        async with asyncio.timeout(patience):
            async for part in Request(scope, receive).stream():
                body += part
                if len(body) > MOST_BYTES:
                    return 413, b""
    except ClientDisconnect:
        return 400, b""
    except TimeoutError:
        return 408, b""
    return 0, bytes(body)


def _digest(token: bytes) -> bytes:
    """Return what to compare instead of a token, whose length it does not show."""
    return hashlib.sha256(token).digest()
