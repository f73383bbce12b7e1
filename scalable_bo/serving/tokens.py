"""The token of a server, in a file that its owner alone can read."""

from __future__ import annotations

import os
import secrets
import shlex
import stat
from pathlib import Path

from scalable_bo.evaluation.evaluator import MOST_BYTES


def new_token() -> str:
    """Return a token that nobody guesses."""
    return secrets.token_urlsafe()


def read_or_make_token(file: Path) -> str:
    """Return the token in a file, which is made with a new one if it is not there; raise ValueError
    if others than its owner may read it, or it holds no token, OSError if it cannot be opened.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as stream:
        _require_private(file, stream.fileno())
        content = stream.read(MOST_BYTES)
        if not content:  # it is new, or of a server that was killed before it had one
            token = new_token()
            stream.write(f"{token}\n".encode())
            stream.flush()
            os.fsync(stream.fileno())
            return token
    return _token_in(file, content)


def read_token(file: Path) -> str:
    """Return the token in a file; raise as ``read_or_make_token``, also if there is no file."""
    if not file.exists():
        raise FileNotFoundError(
            f"The token's file must be there, got {file}. Copy it from the folder of the study that"
            " is served."
        )
    with file.open("rb") as stream:
        _require_private(file, stream.fileno())
        return _token_in(file, stream.read(MOST_BYTES))


def _require_private(file: Path, descriptor: int) -> None:
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) or mode & 0o077:
        raise ValueError(
            f"The token's file must be one that its owner alone can read, got {file} with mode"
            f" {stat.S_IMODE(mode):03o}. Run: chmod 600 {shlex.quote(str(file))}"
        )


def _token_in(file: Path, content: bytes) -> str:
    token = content.decode("utf-8", "replace").strip()
    fewest = secrets.DEFAULT_ENTROPY
    if not token.isascii() or not token.isprintable() or len(token) < fewest or " " in token:
        raise ValueError(
            f"The token's file must hold a token of at least {fewest} characters, got {file}"
            " with something else. Copy the server's again, or remove the server's and restart it."
        )
    return token
