"""What is asked of simulated containers over CRI and on their ports."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc
import pytest

from oracle.cri_client import Client, play, pod

T = TypeVar("T")
EXEC = {"exec": {"command": ["check"]}}
ANSWER_S_MAX = 60.0


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Success", 0),
        ("Failure", 1),
        ("Timeout", grpc.StatusCode.DEADLINE_EXCEEDED),
        ("Error", grpc.StatusCode.UNKNOWN),
    ],
)
def test_an_exec_probe_finds_what_is_declared(
    tmp_path: Path, answer: str, expected: int | grpc.StatusCode
) -> None:
    notes = {"fleet.emulator/readiness-probe": answer}

    async def story(client: Client) -> None:
        request = {"container_id": await client.started(notes), "cmd": ["check"], "timeout": 1}
        if isinstance(expected, int):
            assert (await client.call("ExecSync", **request)).exit_code == expected
        else:
            assert (await client.error("ExecSync", **request))[0] is expected

    play(tmp_path, story, pod(notes, readinessProbe=EXEC))


def test_an_exec_that_nothing_is_declared_of_sees_the_containers_files(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        script = "touch /tmp/ok; sleep 4; rm /tmp/ok; sleep 60"
        container = await client.started(command=["sh", "-c", script])
        request = {"container_id": container, "cmd": ["cat", "/tmp/ok"], "timeout": 1}
        assert (await client.call("ExecSync", **request)).exit_code == 0
        while not (answer := await client.call("ExecSync", **request)).exit_code:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert answer.exit_code == 1
        assert b"No such file" in answer.stdout

    play(tmp_path, story)


def test_nothing_is_run_in_a_container_that_has_ended(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        container = await client.started({"fleet.emulator/run-time": "300ms"})
        hanging = client.error("ExecSync", container_id=container, cmd=["x"], timeout=1)
        await client.until_exited(container)
        assert await hanging == (
            grpc.StatusCode.UNKNOWN,
            "failed to exec in container: container is in CONTAINER_EXITED state",
        )

    play(tmp_path, story)


async def get(
    ip: str,
    port: int,
    wanted: str = "/",
    context: ssl.SSLContext | None = None,
    *,
    silent_s: float = ANSWER_S_MAX,
) -> bytes:
    """Return the first line of an answer, b"" for silence. Raises OSError."""
    reader, writer = await asyncio.open_connection(ip, port, ssl=context)
    writer.write(f"GET {wanted} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    try:
        return await asyncio.wait_for(reader.readline(), silent_s)
    except TimeoutError:
        return b""
    finally:
        writer.transport.abort()


async def once_open(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until the port is open: it follows the start of its container."""
    async with asyncio.timeout(ANSWER_S_MAX):
        while True:
            try:
                return await ask()
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)


async def until_closed(ip: str, port: int) -> None:
    async with asyncio.timeout(ANSWER_S_MAX):
        with contextlib.suppress(ConnectionRefusedError):
            while True:
                await get(ip, port)
                await asyncio.sleep(0.05)


async def address(client: Client) -> str:
    [listed] = (await client.call("ListPodSandbox")).items
    found = await client.call("PodSandboxStatus", pod_sandbox_id=listed.id)
    return str(found.status.network.ip)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("Success", b"HTTP/1.1 200"),
        ("Failure", b"HTTP/1.1 503"),
        ("{phases: [{result: Failure, statusCode: 418}]}", b"HTTP/1.1 418"),
        ("Warning", b"HTTP/1.1 302"),
        ("Timeout", b""),
        ("Refused", None),
    ],
)
def test_a_port_answers_as_declared(tmp_path: Path, answer: str, line: bytes | None) -> None:
    notes = {"fleet.emulator/liveness-probe": answer}

    async def story(client: Client) -> None:
        await client.started(notes)
        await asyncio.sleep(0.05)
        ip = await address(client)
        if line is None:
            with pytest.raises(ConnectionRefusedError):
                await get(ip, 18080, "/healthz")
        else:
            silent_s = ANSWER_S_MAX if line else 0.5
            said = await once_open(partial(get, ip, 18080, "/healthz", silent_s=silent_s))
            assert said.startswith(line) if line else not said

    probe = {"httpGet": {"path": "/healthz", "port": 18080}}
    play(tmp_path, story, pod(notes, livenessProbe=probe))


def test_a_port_is_open_while_its_container_runs_and_listens(tmp_path: Path) -> None:
    notes = {
        "fleet.emulator/readiness-probe": "Refused, Success after 4s",
        "fleet.emulator/run-time": "10s",
    }

    async def story(client: Client) -> None:
        container = await client.started(notes)
        ip = await address(client)
        started_s = (await client.status(container)).started_at // 10**9
        while time.time() < started_s + 1.5:
            with pytest.raises(ConnectionRefusedError):
                await get(ip, 18081)
            await asyncio.sleep(0.1)
        assert (await once_open(partial(get, ip, 18081))).startswith(b"HTTP/1.1 200")
        assert time.time() > started_s + 4
        await client.until_exited(container)
        await until_closed(ip, 18081)

    probe = {"tcpSocket": {"port": "web"}}
    ports = [{"name": "web", "containerPort": 18081}]
    play(tmp_path, story, pod(notes, readinessProbe=probe, ports=ports))


def test_a_port_serves_tls_if_its_probe_asks_for_it(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        await client.started()
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        ip = await address(client)
        said = await once_open(partial(get, ip, 18083, "/", context))
        assert said.startswith(b"HTTP/1.1 200")

    probe = {"httpGet": {"port": 18083, "scheme": "HTTPS"}}
    play(tmp_path, story, pod(readinessProbe=probe))


def test_a_tcp_probe_that_times_out_is_not_let_in(tmp_path: Path) -> None:
    notes = {"fleet.emulator/readiness-probe": "Timeout"}

    async def story(client: Client) -> None:
        await client.started(notes)
        ip = await address(client)

        async def open_it() -> None:
            await asyncio.wait_for(asyncio.open_connection(ip, 18084), 0.5)

        with pytest.raises(TimeoutError):
            await once_open(open_it)

    play(tmp_path, story, pod(notes, readinessProbe={"tcpSocket": {"port": 18084}}))


@pytest.mark.parametrize(("answer", "status"), [("Success", 1), ("Failure", 2)])
def test_the_health_protocol_of_grpc(tmp_path: Path, answer: str, status: int) -> None:
    notes = {"fleet.emulator/readiness-probe": answer}

    async def story(client: Client) -> None:
        await client.started(notes)
        await asyncio.sleep(0.1)
        async with grpc.aio.insecure_channel(f"{await address(client)}:18082") as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert await check(b"") == bytes((8, status))

    play(tmp_path, story, pod(notes, readinessProbe={"grpc": {"port": 18082}}))
