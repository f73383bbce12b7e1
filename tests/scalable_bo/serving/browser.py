"""Headless Chromium by WebDriver, with the standard library alone."""

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from base64 import b64decode
from pathlib import Path
from typing import Any, Self

from tests.waiting import eventually

OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element in the protocol


def missing() -> str:
    """Return what a browser test lacks on this machine; empty if nothing."""
    wanted = ("chromium", "chromedriver")
    return ", ".join(name for name in wanted if shutil.which(name) is None)


class Browser:
    """A browser, of a window's size, on light or on dark.

    Args:
        folder: for its profile.
    """

    def __init__(self, folder: Path, width: int, height: int, *, dark: bool = False) -> None:
        self._log = (folder / "chromedriver.log").open("w+")
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=self._log, stderr=subprocess.STDOUT
        )
        self._url = f"http://127.0.0.1:{self._wait_for_port(folder)}"
        arguments = [
            *OPTIONS,
            f"--user-data-dir={folder / 'profile'}",
            f"--window-size={width},{height}",
            *(["--blink-settings=preferredColorScheme=0"] if dark else []),
        ]
        options = {
            "goog:chromeOptions": {"args": arguments, "binary": shutil.which("chromium")},
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": options}})
        self._url += f"/session/{made['sessionId']}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait()
            self._log.close()

    def open(self, url: str) -> None:
        """Open a page."""
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a function's body returns, of ``arguments``."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def run_async(self, script: str) -> Any:
        """Return what a function's body gives to its last argument."""
        return self._call("POST", "/execute/async", {"script": script, "args": []})

    def wait_for(self, script: str, seconds: float = 60.0) -> Any:
        """Return the first true value of an expression."""
        return eventually(lambda: self.run(f"return {script}"), seconds)

    def type(self, selector: str, text: str) -> None:
        """Type into an element."""
        self._call("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keys", "actions": actions}
        self._call("POST", "/actions", {"actions": [source]})

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag from one place of the window to another."""
        moves = [
            {"type": "pointerMove", "duration": 0, "x": round(start[0]), "y": round(start[1])},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerMove", "duration": 50, "x": round(end[0]), "y": round(end[1])},
            {"type": "pointerUp", "button": 0},
        ]
        source = {"type": "pointer", "id": "mouse", "actions": moves}
        self._call("POST", "/actions", {"actions": [source]})

    def console(self) -> list[str]:
        """Return what the browser has complained of."""
        found = self._call("POST", "/se/log", {"type": "browser"})
        return [line["message"] for line in found]

    def picture(self, file: Path) -> None:
        """Write a picture of the window."""
        file.write_bytes(b64decode(self._call("GET", "/screenshot")))

    def _find(self, selector: str) -> str:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[ELEMENT])

    def _wait_for_port(self, folder: Path) -> str:
        def port() -> str | None:
            text = (folder / "chromedriver.log").read_text()
            match = re.search(r"started successfully on port (\d+)", text)
            return None if match is None else match[1]

        return str(eventually(port))

    def _call(self, method: str, path: str, content: Any = None) -> Any:
        body = json.dumps(content).encode() if method == "POST" else None
        request = urllib.request.Request(self._url + path, body, method=method)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:2000]) from None


os.environ.setdefault("NO_PROXY", "127.0.0.1")
