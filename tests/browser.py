# SPDX-License-Identifier: Apache-2.0
"""A real headless browser, driven over WebDriver with the standard library alone."""

import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-default-apps", "--disable-extensions", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--force-device-scale-factor=1",
)  # fmt: skip


def missing() -> str:
    """Which program is not installed; empty where all are."""
    for names in (("chromium", "google-chrome"), ("chromedriver",)):
        if not any(map(shutil.which, names)):
            return names[0]
    return ""


class Browser:
    """One session of a browser.

    Args:
        url: Address of the driver.
        profile: An empty folder for the browser's own files.
    """

    def __init__(self, url: str, profile: Path) -> None:
        self._url = url
        program = shutil.which("chromium") or shutil.which("google-chrome")
        options = {
            "binary": program,
            "args": [*FLAGS, f"--user-data-dir={profile}"],
            "perfLoggingPrefs": {"enableNetwork": True},
        }
        always = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        answer = self._call("POST", "", {"capabilities": {"alwaysMatch": always}})
        self._url += f"/{answer['sessionId']}"

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self._url + path, data, {"Content-Type": "application/json"}, method=method
        )
        # A proxy of the environment is not for an address of this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=120) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None

    def open(
        self, page: Path, width: int, height: int = 900, dark: bool = False
    ) -> None:
        """Show a file at a size, in the light or the dark scheme."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])
        self._call("POST", "/url", {"url": page.as_uri()})

    def forget(self) -> None:
        """Leave the page, and drop what was said and asked for so far."""
        self._call("POST", "/url", {"url": "about:blank"})
        self.console()
        self.requests()

    def devtools(self, command: str, **params: Any) -> Any:
        """Run a command of the DevTools protocol."""
        body = {"cmd": command, "params": params}
        return self._call("POST", "/goog/cdp/execute", body)

    def script(self, code: str, *arguments: object) -> Any:
        """Run a script in the page and return its value."""
        body = {"script": code, "args": list(arguments)}
        return self._call("POST", "/execute/sync", body)

    def picture(self, file: Path) -> None:
        """Write a PNG of the whole page."""
        size = self.devtools("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"]}
        shot = self.devtools(
            "Page.captureScreenshot", captureBeyondViewport=True,
            clip={**clip, "scale": 1},
        )  # fmt: skip
        file.write_bytes(base64.b64decode(shot["data"]))

    def console(self) -> list[str]:
        """Return what the console said since it was last asked."""
        found = self._call("POST", "/se/log", {"type": "browser"})
        return [f"{entry['level']}: {entry['message']}" for entry in found]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since it was last asked."""
        found = self._call("POST", "/se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in found]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        """End the session, and the browser with it."""
        with contextlib.suppress(AssertionError, OSError):
            self._call("DELETE", "")


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a driver and a browser, and end both."""
    driver = shutil.which("chromedriver")
    assert driver is not None
    profile = folder / "profile"
    profile.mkdir()
    log = folder / "driver.log"
    environment = {key: value for key, value in os.environ.items() if key != "DISPLAY"}
    command: Sequence[str] = [driver, "--port=0", "--log-level=INFO"]
    with (
        log.open("wb") as out,
        subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process,
    ):
        try:
            port = _port(process, log)
            session = Browser(f"http://127.0.0.1:{port}/session", profile)
            try:
                yield session
            finally:
                session.close()
        finally:
            process.terminate()


def _port(process: "subprocess.Popen[bytes]", log: Path) -> int:
    """Wait for the driver to say on which port it listens."""
    for _ in range(600):
        text = log.read_text("utf-8", "replace")
        if match := re.search(r"started successfully on port (\d+)\.", text):
            return int(match[1])
        assert process.poll() is None, text
        time.sleep(0.1)
    raise AssertionError(f"the driver did not start: {log.read_text()}")
