"""A PostgreSQL server for tests: a cluster in a temporary folder, behind a Unix socket."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

USER = "postgres"


@cache
def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, that of the newest version."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@contextmanager
def serving() -> Iterator[str]:
    """Run a server, and give the URL of a database of it."""
    bin = programs()
    if bin is None:
        pytest.skip("PostgreSQL is not installed: install Debian's package `postgresql`")
    pytest.importorskip("psycopg")
    # The server refuses to run as root
    owner: dict[str, Any] = {"user": USER, "group": USER} if os.getuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="pg"))  # short: so must be the path of a socket
    data = folder / "data"

    def call(program: str, *arguments: str) -> None:
        subprocess.run(
            [bin / program, "-D", data, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            **owner,
        )

    try:
        if owner:
            shutil.chown(folder, USER, USER)
        folder.chmod(0o755)
        call("initdb", "-A", "trust", "-U", USER, "--no-sync", "-E", "UTF8")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off -c max_connections=200"
        call("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql+psycopg://{USER}@/{USER}?host={folder}"
        finally:
            call("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
