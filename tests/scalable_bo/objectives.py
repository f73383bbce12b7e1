"""Objectives that processes can import, and that fail in every way;
what is asked of them is in the parameter ``what``.
"""

import math
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

FAULTS = {
    "nan": "the value is nan",
    "inf": "the value is inf",
    "raise": "ValueError: too <b>steep</b> at once",
    "exit": "SystemExit: 3",
    "text": "not a number: str 'much'",
    "none": "not a number: NoneType None",
    "huge": "ValueError: The value of point",
}


def square(params: dict[str, Any]) -> float:
    return -((params["x"] - 0.3) ** 2)


def faulty(params: dict[str, Any]) -> Any:
    match params["what"]:
        case "good":
            return np.array(float(params["number"]))
        case "nan":
            return math.nan
        case "inf":
            return math.inf
        case "raise":
            raise ValueError("too <b>steep</b>\n at once")
        case "exit":
            raise SystemExit(3)
        case "text":
            return "much"
        case "huge":
            return 10**400


def hang_above_half(params: dict[str, Any]) -> float:
    if params["x"] > 0.5:
        threading.Event().wait(5)
    return square(params)


def die_above_three_quarters(params: dict[str, Any]) -> float:
    if params["x"] > 0.75:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(params)


def note_and_wait(params: dict[str, Any]) -> float:
    """Take as long as the file ``seconds`` in the current folder says, and write that as a line to
    the file ``begun`` before.
    """
    seconds = Path("seconds").read_text()
    with Path("begun").open("a") as file:
        file.write(f"{seconds}\n")
    time.sleep(float(seconds))
    return square(params)


def without_its_key(params: dict[str, Any]) -> float:
    return float(params["missing"])


def wait_for_a_child(params: dict[str, Any]) -> float:
    """Write a line to the file ``begun`` and wait for a child in a session of its own."""
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    with Path("begun").open("a") as file:
        file.write("begun\n")
    return float(child.wait())


def with_a_child(params: dict[str, Any]) -> float:
    """Return a value after a child that nobody waits for was started."""
    subprocess.Popen(["sleep", f"{params['x']:.2f}"], start_new_session=True)
    time.sleep(0.02 * params["x"])
    return square(params)


def with_its_deviation(params: dict[str, Any]) -> tuple[float, float]:
    return square(params), 0.1


def misnamed_above_half(params: dict[str, Any]) -> dict[str, float]:
    return {"cost": params["x"], "gian" if params["x"] > 0.5 else "gain": square(params)}


def lacking_above_half(params: dict[str, Any]) -> dict[str, float | None]:
    return {"cost": params["x"], "gain": None if params["x"] > 0.5 else square(params)}
