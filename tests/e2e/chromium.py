"""One tab of a headless Chromium, over its DevTools protocol.

A page is asked for what a person would see, and typed and clicked into as a person would. Chromium
itself is the distribution's (`apt-get install chromium`); nothing else has to be installed.
Source: https://chromedevtools.github.io/devtools-protocol/, domains Page, Runtime, Input.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
INSTALL = "no Chromium: apt-get install chromium"
START_S_MAX = 120.0
WAIT_S_MAX = 120.0
POLL_S = 0.1


def find_chromium() -> str:
    """Return the program, "" if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), "")


class Page:
    """A tab: what is called is done when the call returns."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.errors: list[str] = []  # what scripts threw, and what the console calls an error
        self.requests: list[str] = []  # addresses, since the domain Network was enabled

    async def call(self, method: str, **parameters: object) -> Any:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=WAIT_S_MAX)
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(message["params"]["exceptionDetails"]))
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            if message.get("method") == "Log.entryAdded":
                entry = message["params"]["entry"]
                self.errors += [entry["text"]] if entry["level"] == "error" else []
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                return message["result"]

    async def open(self, url: str) -> None:
        """Go to an address and wait for its document; its scripts may still be at work."""
        found = await self.call("Page.navigate", url=url)
        assert not found.get("errorText"), (url, found)
        await self.until("document.readyState !== 'loading' && document.body !== null")

    async def ask(self, script: str) -> Any:
        """Return the value of an expression."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, (script, found)
        return found["result"].get("value")

    async def until(self, script: str, *, limit_s: float = WAIT_S_MAX) -> Any:
        """Wait until an expression is true; return its value."""
        deadline_s = asyncio.get_running_loop().time() + limit_s
        while not (value := await self.ask(script)):
            if asyncio.get_running_loop().time() > deadline_s:
                text = await self.ask("document.body.innerText")
                raise AssertionError(f"not within {limit_s:.0f} s: {script}; the page:\n{text}")
            await asyncio.sleep(POLL_S)
        return value

    async def click(self, words: str) -> None:
        """Click on the button, link or tab that has these words."""
        await self.until(
            "(() => { const found = [...document.querySelectorAll('button, a, [role=tab]')]"
            f".find(each => each.innerText.trim().toLowerCase() === {json.dumps(words.lower())});"
            " if (found) found.click(); return Boolean(found); })()"
        )

    async def fill(self, name: str, value: object) -> None:
        """Type a value over what stands in a field of a form."""
        field = f"document.querySelector('input[name={name}]')"
        await self.until(f"Boolean({field})")
        await self.ask(f"{field}.focus(), {field}.select()")
        await self.call("Input.insertText", text=str(value))

    async def choose(self, name: str, value: str) -> None:
        """Choose an option of a select."""
        field = f"document.querySelector('select[name={name}]')"
        await self.until(f"Boolean({field})")
        chosen = f"{field}.value = {json.dumps(value)}"
        await self.ask(f"{chosen}, {field}.dispatchEvent(new Event('change', {{bubbles: true}}))")

    async def screenshot(self, path: Path) -> None:
        """Write what is seen as PNG."""
        found = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(found["data"]))


@contextlib.asynccontextmanager
async def browse(profile: Path, *, width: int = 1280, height: int = 900) -> AsyncIterator[Page]:
    """Run a Chromium with one empty tab; `profile` is a directory for its files."""
    process = await asyncio.create_subprocess_exec(
        *(find_chromium(), "--headless=new", "--no-sandbox", "--disable-gpu"),
        *("--remote-debugging-port=0", f"--user-data-dir={profile}", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *(f"--window-size={width},{height}", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with aiohttp.ClientSession() as session:
            async with asyncio.timeout(START_S_MAX):
                url = await _first_tab(session, await _debugging_port(profile))
            async with session.ws_connect(url, max_msg_size=0) as socket:
                page = Page(socket)
                await page.call("Runtime.enable")
                await page.call("Page.enable")
                yield page
    finally:
        process.terminate()
        await process.wait()


async def _debugging_port(profile: Path) -> int:
    """Wait for the file in which Chromium tells the port that it found."""
    told = profile / "DevToolsActivePort"
    while not (told.exists() and told.read_text().count("\n")):  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    return int(told.read_text().splitlines()[0])


async def _first_tab(session: aiohttp.ClientSession, port: int) -> str:
    """Wait for the tab that Chromium opens; return where it is spoken to."""
    while True:
        async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            tabs = await answer.json(content_type=None)
        for tab in tabs:
            if tab["type"] == "page":
                return str(tab["webSocketDebuggerUrl"])
        await asyncio.sleep(POLL_S)
