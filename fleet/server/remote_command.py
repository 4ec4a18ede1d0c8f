"""exec, attach and run: a session in a container, and who speaks with it over which protocol.

    input task:   client -> stdin, resize          output loop: advance -> stdout, stderr -> status

A session is asked for `CHUNK_BYTES` at a time and only once the client took the last ones, so a
client that does not read holds one chunk and its socket's buffers, and disturbs nobody.
Source: cri-streaming/pkg/streaming/remotecommand/{exec,attach,httpstream}.go;
apiserver/pkg/util/proxy/streamtranslator.go.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import orjson

from fleet.k8s.effects import NodeId
from fleet.k8s.streams import Output, TerminalSize
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.server.host import Session
from fleet.server.questions import BugError, NodeGoneError, Questions

CHUNK_BYTES = 32 << 10
STUCK_S = 0.02
"""How soon input is offered again to a session that had no room for all of it."""
T = TypeVar("T")
CODE_TEXT = "command terminated with non-zero exit code: command terminated with exit code %d"


class Channel(IntEnum):
    """The numbers of streams. Source: remotecommand/constants.go."""

    STDIN = 0
    STDOUT = 1
    STDERR = 2
    ERROR = 3
    RESIZE = 4
    CLOSE = 255


class Wanted(NamedTuple):
    """Which streams a client wants. Source: remotecommand/httpstream.go, Options."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


class Ended(NamedTuple):
    """How a command ended."""

    exit_code: int
    error: str = ""

    def status(self) -> bytes:
        """Return it as a v1.Status, as protocols from version 4 on carry it."""
        return orjson.dumps(self._status())

    def text(self) -> bytes:
        """Return it as protocols before version 4 do: nothing, or why."""
        return str(self._status().get("message", "")).encode()

    def _status(self) -> dict[str, object]:
        if self.error:
            message = f"Internal error occurred: error executing command in container: {self.error}"
            return {
                "metadata": {},
                "status": "Failure",
                "message": message,
                "reason": "InternalError",
                "details": {"causes": [{"message": message.partition(": ")[2]}]},
                "code": 500,
            }
        if not self.exit_code:
            return {"metadata": {}, "status": "Success"}
        return {
            "metadata": {},
            "status": "Failure",
            "message": CODE_TEXT % self.exit_code,
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(self.exit_code)}]},
        }


class Client(Protocol):
    """The other end of a session."""

    async def receive(self) -> tuple[Channel, bytes] | None:
        """Return the next input: of STDIN or RESIZE, CLOSE at the end of stdin, None at the end."""

    async def send(self, channel: Channel, data: bytes) -> None:
        """Send output; returns once there is room for more. Raises ConnectionError."""

    async def finish(self, ended: Ended) -> None:
        """Say how it ended, and end the connection."""


def wanted_streams(query: Mapping[str, Sequence[str]]) -> Wanted | None:
    """Read what a client wants; None if it wants nothing. Source: NewOptions."""

    def is_set(name: str) -> bool:
        return query.get(name, [""])[0] == "1"

    tty = is_set("tty")
    wanted = Wanted(is_set("input"), is_set("output"), is_set("error") and not tty, tty)
    return wanted if wanted.stdin or wanted.stdout or wanted.stderr else None


class Conversation:
    """One session and its client, to the end of either."""

    def __init__(
        self, questions: Questions, node: NodeId, session: Session, client: Client, wanted: Wanted
    ) -> None:
        self._questions = questions
        self._node = node
        self._session = session
        self._client = client
        self._wanted = wanted
        self._news = asyncio.Event()  # input was taken: there may be output
        self._is_gone = False

    async def run(self) -> None:
        """Carry input and output until the command ends or the client goes."""
        taking = asyncio.ensure_future(self._take_input())
        try:
            ended = await self._give_output()
            if ended is not None:
                await self._client.finish(ended)
        except BugError as error:
            await self._client.finish(Ended(0, str(error)))
        except (ConnectionError, NodeGoneError):
            pass
        finally:
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await taking
            with contextlib.suppress(NodeGoneError, BugError):
                await asyncio.shield(self._ask(self._session.close))

    async def _give_output(self) -> Ended | None:
        while not self._is_gone:
            self._news.clear()
            output = await self._ask(partial(self._session.advance, CHUNK_BYTES))
            # The errors first: `kubectl cp` ends with the archive, and what comes later is lost.
            if output.stderr and self._wanted.stderr:
                await self._client.send(Channel.STDERR, output.stderr)
            if output.stdout and self._wanted.stdout:
                await self._client.send(Channel.STDOUT, output.stdout)
            if output.more:
                continue
            if output.exit_code is not None or output.error:
                return Ended(output.exit_code or 0, output.error)
            await self._wait(output)
        return None

    async def _wait(self, output: Output) -> None:
        """Wait for input, or until the command goes on by itself."""
        limit_s = None
        if output.wake_ns is not None:
            limit_s = max(output.wake_ns - time.monotonic_ns(), 0) / 1e9
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._news.wait()

    async def _take_input(self) -> None:
        try:
            while (found := await self._client.receive()) is not None:
                channel, data = found
                if channel is Channel.STDIN and self._wanted.stdin:
                    await self._write(data)
                elif channel is Channel.CLOSE and self._wanted.stdin:
                    await self._ask(self._session.close_stdin)
                elif channel is Channel.RESIZE and self._wanted.tty:
                    for size in sizes_of(data):
                        await self._ask(partial(self._resize, size))
                self._news.set()
        except (NodeGoneError, BugError):
            pass
        self._is_gone = True
        self._news.set()

    async def _write(self, data: bytes) -> None:
        while data:
            taken = await self._ask(partial(self._session.write, data[:CHUNK_BYTES]))
            data = data[taken:]
            self._news.set()
            if data and not taken:
                await asyncio.sleep(STUCK_S)

    def _resize(self, size: TerminalSize, _now_ns: int) -> None:
        self._session.resize(size)

    async def _ask(self, act: Callable[[int], T]) -> T:
        """Do something with the session in the reactor's thread, and what follows for the pod."""

        def in_reactor(_kubelet: VirtualKubelet, now_ns: int) -> T:
            result = act(now_ns)
            out = self._session.out
            if out:
                self._questions.perform(out)
                out.clear()
            return result

        return await self._questions.ask(self._node, in_reactor)


def sizes_of(data: bytes) -> list[TerminalSize]:
    """Read sizes of a terminal; what is none is ignored. Source: handleResizeEvents."""
    found = []
    for line in data.replace(b"}{", b"}\n{").split(b"\n"):
        try:
            size = orjson.loads(line)
            found.append(TerminalSize(int(size.get("Width", 0)), int(size.get("Height", 0))))
        except (ValueError, TypeError, AttributeError):
            continue
    return found
