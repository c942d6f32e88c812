"""A headless Chromium that tests drive through its DevTools pipe."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars")


class Browser:
    """One page; `errors` are its exceptions and console errors, `requests` the addresses it has loaded."""

    def __init__(self, send, receive):
        self.send, self.receive = send, receive
        self.buffer, self.number, self.session, self.errors, self.requests = b"", 0, None, [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Page", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, limit_s=60, **parameters):
        """Call a DevTools method and return its result."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            answer = self.read(end - time.monotonic())
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
        raise TimeoutError(method)

    def read(self, limit_s):
        """Read one message and record errors."""
        while b"\0" not in self.buffer:
            if not select.select([self.receive], [], [], max(limit_s, 0))[0]:
                raise TimeoutError("Chromium does not answer")
            self.buffer += os.read(self.receive, 1 << 20)
        line, _, self.buffer = self.buffer.partition(b"\0")
        message = json.loads(line)
        failed = message.get("method") == "Runtime.exceptionThrown"
        if failed or (message.get("method") == "Runtime.consoleAPICalled" and message["params"]["type"] == "error"):
            self.errors.append(message["params"])
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        return message

    def value(self, expression):
        """Evaluate JavaScript in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression, limit_s=60):
        """Wait until an expression is true."""
        end = time.monotonic() + limit_s
        while not self.value(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.2)

    def open(self, path):
        """Open a file."""
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.until("document.readyState === 'complete'")


@contextlib.contextmanager
def browser(folder):
    """Start Chromium with a profile in a folder, and end it."""
    to_browser, from_browser = os.pipe(), os.pipe()

    def connect():  # Chromium reads messages from file descriptor 3 and writes to 4
        ends = os.dup(to_browser[0]), os.dup(from_browser[1])
        os.dup2(ends[0], 3)
        os.dup2(ends[1], 4)

    words = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(words, preexec_fn=connect, close_fds=False, stderr=subprocess.DEVNULL)  # noqa: PLW1509
    os.close(to_browser[0])
    os.close(from_browser[1])
    try:
        yield Browser(to_browser[1], from_browser[0])
    finally:
        process.terminate()
        process.wait(30)
        os.close(to_browser[1])
        os.close(from_browser[0])
