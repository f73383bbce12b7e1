"""Requests as they stand on the wire, right and wrong."""

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit


def send(
    url: str,
    path: str,
    *,
    method: str = "GET",
    token: str | None = None,
    body: bytes | Iterator[bytes] | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes, dict[str, str]]:
    """Return the status, the body and the headers of an answer; 413 where the server has closed the
    connection in the middle of a body.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=300)
    given = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        try:
            connection.request(method, path, body, given | (headers or {}))
            answer = connection.getresponse()
        except (BrokenPipeError, ConnectionResetError):
            return 413, b"", {}
        content = answer.read()
        return answer.status, content, {key.lower(): value for key, value in answer.getheaders()}
    finally:
        connection.close()


def post(url: str, path: str, token: str, content: Any) -> tuple[int, Any]:
    """Post JSON, and return the status and the answer."""
    headers = {"Content-Type": "application/json"}
    status, answer, _ = send(
        url, path, method="POST", token=token, body=json.dumps(content).encode(), headers=headers
    )
    return status, json.loads(answer)
