"""A real HTTP proxy on loopback: CONNECT, with or without a password, or none for anybody."""

import asyncio
import contextlib
import threading
from typing import Self

STATUS = {200: "200 Connection established", 403: "403 Forbidden", 407: "407 Auth Required"}


class ConnectProxy:
    """Runs in a thread of its own; `asked` is for what, `authorizations` by whom."""

    def __init__(self, code: int = 200, *, piecewise: bool = False) -> None:
        self.code = code
        self.piecewise = piecewise
        self.asked: list[str] = []
        self.authorizations: list[str] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._writers: list[asyncio.StreamWriter] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            verb, target, _ = head.split(" ", 2)
            assert verb == "CONNECT", head
            self.asked.append(target)
            headers = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
            self.authorizations.append(headers.get("Proxy-Authorization", ""))
            reply = f"HTTP/1.1 {STATUS[self.code]}\r\nX-By: proxy\r\n\r\n".encode()
            for piece in (reply[:7], reply[7:]) if self.piecewise else (reply,):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if self.code == 200:
                host, _, port = target.rpartition(":")
                beyond = await asyncio.open_connection(host.strip("[]"), int(port))
                self._writers.append(beyond[1])
                await asyncio.gather(_copy(reader, beyond[1]), _copy(beyond[0], writer))
        writer.close()

    def __enter__(self) -> Self:
        """Listen on a free port."""
        began = threading.Event()

        async def listen() -> None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self.port = self._server.sockets[0].getsockname()[1]
            began.set()

        def run() -> None:
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(listen())
            self._loop.run_forever()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        assert began.wait(10)
        return self

    def __exit__(self, *_error: object) -> None:
        """End every connection and the thread."""

        async def end() -> None:
            self._server.close()
            tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.sleep(0.01)  # until they are closed
            self._loop.stop()

        asyncio.run_coroutine_threadsafe(end(), self._loop)
        self._thread.join(10)
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()
