"""A page in a real, headless Chromium, spoken to over its DevTools pipe."""

import base64
import json
import os
import select
import shutil
import subprocess

#: Names under which a Chromium may be installed.
BROWSER = next(
    filter(
        None,
        map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome")),
    ),
    None,
)


#: Longest silence of a browser on a busy machine.
SECONDS = 120


class Page:
    """One tab.

    Args:
        folder: For the browser's own files.
        width, height: Of the window, CSS pixels.
        phone: Behave like a phone (mobile viewport).
        printed: Look as on paper.
    """

    def __init__(self, folder, width, height=900, *, phone=False, printed=False):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += ["--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"]
        # The browser reads its commands from descriptor 3 and answers on 4.
        redirect = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", redirect, "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._count, self._buffer, self.events, self._session = 0, b"", [], None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Log", "Runtime", "Network"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setEmulatedMedia", media="print" if printed else "screen")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self._call("Emulation.setDeviceMetricsOverride", **size)

    def open(self, path):
        """Load a file and wait until everything in it is there."""
        self._call("Page.navigate", url=path.resolve().as_uri())
        self._until("Page.loadEventFired")

    def value(self, expression):
        """What a JavaScript expression gives."""
        found = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        return found["result"]["value"]

    def problems(self):
        """Errors and warnings of the console, and exceptions."""
        names = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        return [event for event in self.events if event["method"] in names]

    def requests(self):
        """Addresses of everything that was asked for."""
        sent = [e for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def screenshot(self, path, *, whole=False):
        """A PNG of what is in the window, or of the whole page."""
        shot = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        """End the browser."""
        os.close(self._write)
        self._process.kill()
        self._process.wait()
        os.close(self._read)

    def _call(self, method, **params):
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _until(self, method):
        while not any(event["method"] == method for event in self.events):
            self.events.append(self._next())

    def _next(self):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], SECONDS)
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 16)
            assert part, "the browser has ended"
            self._buffer += part
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)
