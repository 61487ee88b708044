"""Run a headless Chromium for tests: show pages at any width and theme or in print, ask by JavaScript, photograph.

It speaks the DevTools protocol over two pipes, so that no package and no port is needed.
"""

import base64
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
_QUIET = ("--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--no-proxy-server")

_FLAWS = (Path(__file__).parent / "page_flaws.js").read_text()
MARKS = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PROGRAM, reason="there is no Chromium here"),
]


class Browser:
    """A running browser with one page; `messages` are the errors of its console and the requests that it made."""

    def __init__(self, write, read):
        self._write, self._read = write, read
        self._buffer, self._last, self._session = b"", 0, ""
        self.messages: list[str] = []

    def begin(self):
        """Open a tab and turn on the events of the protocol that the tests read."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """Return what the browser answers to a command of the protocol."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self._last:
                assert "error" not in reply, (method, reply["error"])
                return reply["result"]

    def wait_for(self, event):
        """Read messages until this event of the protocol has arrived."""
        while self._next().get("method") != event:
            pass

    def _next(self):
        """Return the next message of the browser; errors of the page and its requests are also kept."""
        while b"\0" not in self._buffer:
            received = os.read(self._read, 1 << 16)
            assert received, "the browser ended"
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.messages.append(json.dumps(message["params"]["exceptionDetails"])[:500])
            case "Log.entryAdded":
                self.messages.append(message["params"]["entry"]["text"])
            case "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if not url.startswith(("file:", "data:")):
                    self.messages.append(f"requested {url}")
        return message

    def show(self, file, width=1280, height=800, dark=False, media="", script=True):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url="about:blank")
        self.wait_for("Page.loadEventFired")
        self.call("Page.navigate", url=f"file://{file}" if isinstance(file, Path) else file)
        self.wait_for("Page.loadEventFired")

    def ask(self, expression):
        """Return the value of an expression in the page, a promise's when it is there."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, json.dumps(answer["exceptionDetails"])[:2000]
        return answer["result"].get("value")

    def overflow(self):
        """Return by how many pixels the page is wider than the window."""
        return self.ask("document.documentElement.scrollWidth - innerWidth")

    def expect_whole(self):
        """Open every fold, and assert that no text is clipped or overprinted and that nothing leaves its box."""
        self.ask("document.querySelectorAll('details[class]').forEach((fold) => (fold.open = true))")
        assert json.loads(self.ask(_FLAWS)) == []
        assert self.overflow() <= 0

    def photograph(self, file, top=0, height=0, width=0, scale=1.0):
        size = self.ask("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        clip = {
            "x": 0, "y": top, "width": width or size[0], "height": height or min(size[1], 16_000), "scale": scale,
        }  # fmt: skip
        picture = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(picture["data"]))


@contextlib.contextmanager
def browser():
    """Start a browser with a profile of its own, and end it."""
    assert PROGRAM, "there is no Chromium here"
    from_us, to_them = os.pipe()
    from_them, to_us = os.pipe()

    def arrange():  # Chromium reads the protocol from descriptor 3 and writes it to 4, so the pipes move there.
        for wanted, pipe in ((3, fcntl.fcntl(from_us, fcntl.F_DUPFD, 10)), (4, fcntl.fcntl(to_us, fcntl.F_DUPFD, 10))):
            os.dup2(pipe, wanted)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [PROGRAM, *_OPTIONS, *_QUIET, "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, preexec_fn=arrange, pass_fds=(3, 4), **silent)
        try:
            os.close(from_us)
            os.close(to_us)
            opened = Browser(to_them, from_them)
            opened.begin()
            yield opened
        finally:
            process.terminate()
            process.wait()
            os.close(to_them)
            os.close(from_them)
