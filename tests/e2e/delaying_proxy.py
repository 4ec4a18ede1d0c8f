"""A proxy that delivers what the server says a while after it was said, like a long way.

Run as a program: PORT of the server and seconds; prints the port on which it listens.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator

HOST = "127.0.0.1"
CHUNK = 1 << 16


async def pass_on(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, delay_s: float
) -> None:
    """Write each piece `delay_s` after it came, in order; a piece waits for no other one's time."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due_s, data = await queue.get()
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            if not data:
                target.close()
                return
            target.write(data)

    async with asyncio.TaskGroup() as group:
        group.create_task(deliver())
        data = b"?"
        while data:
            try:
                data = await source.read(CHUNK)
            except OSError:  # it was reset, and is so for ever
                data = b""
            queue.put_nowait((loop.time() + delay_s, data))


async def serve(port: int, delay_s: float) -> None:
    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(HOST, port)
        with contextlib.suppress(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(pass_on(reader, server_writer, 0.0))
                group.create_task(pass_on(server_reader, writer, delay_s))

    server = await asyncio.start_server(on_connection, HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def delaying_proxy(server_port: int, delay_s: float) -> Iterator[int]:
    """Run a proxy before a server; yield its port."""
    command = (sys.executable, __file__, str(server_port), str(delay_s))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
