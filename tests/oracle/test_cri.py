"""fleet's runtime over CRI, asked by a gRPC client: no kubelet, but its real time."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from fleet.clock import NS_PER_S
from fleet.profile.distribution import ZERO, constant
from fleet.profile.machine import Outage, OutageKind
from oracle.cri.applications import from_pods
from oracle.cri.machine import Machine
from oracle.cri.messages import message_class, path, request_class, response_class, service, value
from oracle.cri.server import CriServer
from oracle.cri_client import CREATED, EXITED, IMAGE, MACHINE, NETWORK, RUNNING, Client, play, pod


def test_the_runtime_is_ready_and_says_what_the_profile_does(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        version = await client.call("Version")
        assert (version.runtime_name, version.runtime_version) == ("containerd", "2.1.5")
        status = await client.call("Status")
        assert {each.type: each.status for each in status.status.conditions} == {
            "RuntimeReady": True,
            "NetworkReady": True,
        }
        config = await client.call("RuntimeConfig")
        assert config.linux.cgroup_driver == value("CGROUPFS")
        assert (await client.error("Exec"))[0] is grpc.StatusCode.UNIMPLEMENTED

    play(tmp_path, story)


TROUBLE_NS = 3 * NS_PER_S


def troubled(kind: OutageKind, reason: str = "", message: str = "") -> Machine:
    """Return the machine with some seconds of trouble from its start on."""
    outage = Outage(
        kind=kind, start=ZERO, duration=constant(TROUBLE_NS), reason=reason, message=message
    )
    return replace(MACHINE, model=replace(MACHINE.model, outages=(outage,)))


@pytest.mark.parametrize(
    ("kind", "condition"),
    [
        (OutageKind.RUNTIME_NOT_READY, "RuntimeReady"),
        (OutageKind.NETWORK_NOT_READY, "NetworkReady"),
    ],
)
def test_a_condition_is_not_met(tmp_path: Path, kind: OutageKind, condition: str) -> None:
    async def story(client: Client) -> None:
        status = await client.call("Status")
        [bad] = [each for each in status.status.conditions if not each.status]
        assert (bad.type, bad.reason, bad.message) == (condition, "Why", "so")
        while not all(each.status for each in status.status.conditions):
            await asyncio.sleep(0.1)
            status = await client.call("Status")

    play(tmp_path, story, machine=troubled(kind, "Why", "so"))


def test_the_runtime_does_not_answer(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        for name in ("Version", "ListImages"):
            assert (await client.error(name))[0] is grpc.StatusCode.UNAVAILABLE
        await asyncio.sleep(TROUBLE_NS / NS_PER_S)
        await client.call("Version")

    play(tmp_path, story, machine=troubled(OutageKind.RUNTIME_DOWN))


def test_a_relist_hangs(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        relist = asyncio.ensure_future(client.call("ListPodSandbox"))
        await client.call("Version")
        assert not relist.done()
        await relist

    play(tmp_path, story, machine=troubled(OutageKind.PLEG_STALL))


def test_a_container_lives_from_its_creation_to_its_removal(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        sandbox, config = await client.sandbox()
        found = (await client.call("PodSandboxStatus", pod_sandbox_id=sandbox)).status
        assert found.state == value("SANDBOX_READY")
        assert found.network.ip.startswith(NETWORK)
        container = await client.container(sandbox, config)
        assert (await client.status(container)).state == CREATED
        await client.call("StartContainer", container_id=container)
        running = await client.status(container)
        assert (running.state, running.image.image) == (RUNNING, IMAGE)
        assert abs(running.started_at / 1e9 - time.time()) < 60
        await client.call("StopContainer", container_id=container, timeout=1)
        ended = await client.status(container)
        assert (ended.state, ended.exit_code, ended.reason) == (EXITED, 137, "Error")
        assert ended.started_at <= ended.finished_at
        await client.call("StopPodSandbox", pod_sandbox_id=sandbox)
        found = (await client.call("PodSandboxStatus", pod_sandbox_id=sandbox)).status
        assert (found.state, found.network.ip) == (value("SANDBOX_NOTREADY"), "")
        await client.call("RemovePodSandbox", pod_sandbox_id=sandbox)
        assert not (await client.call("ListContainers")).containers
        assert not (await client.call("ListPodSandbox")).items
        code, text = await client.error("ContainerStatus", container_id=container)
        assert (code, container in text) == (grpc.StatusCode.NOT_FOUND, True)
        await client.call("StopContainer", container_id=container, timeout=1)  # no error

    play(tmp_path, story)


def test_a_container_ends_as_declared(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        notes = {"fleet.emulator/run-time": "200ms", "fleet.emulator/exit-code": "7"}
        begun = time.monotonic()
        ended = await client.until_exited(await client.started(notes))
        assert (ended.exit_code, ended.reason) == (7, "Error")
        assert time.monotonic() - begun >= 0.2

    play(tmp_path, story)


def test_a_container_ends_as_its_command_does(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        log = {"command": ["sh", "-c", "echo hello; exit 4"], "log_path": "c/0.log"}
        sandbox, config = await client.sandbox()
        config["log_directory"] = str(tmp_path)
        await client.call("RemovePodSandbox", pod_sandbox_id=sandbox)
        made = await client.call("RunPodSandbox", config=config)
        container = await client.container(made.pod_sandbox_id, config, **log)
        await client.call("StartContainer", container_id=container)
        assert (await client.until_exited(container)).exit_code == 4
        [line] = (tmp_path / "c/0.log").read_text().splitlines()
        assert line.split(" ", 1)[1] == "stdout F hello"
        assert (await client.status(container)).log_path == str(tmp_path / "c/0.log")

    play(tmp_path, story)


def test_last_words_are_where_the_kubelet_looks_for_them(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        words = tmp_path / "words"
        words.touch()
        path_of = "io.kubernetes.container.terminationMessagePath"
        container = await client.started(
            {"fleet.emulator/run-time": "10ms", "fleet.emulator/termination-message": "so be it"},
            mounts=[{"container_path": "/dev/termination-log", "host_path": str(words)}],
            annotations={path_of: "/dev/termination-log"},
        )
        await client.until_exited(container)
        assert words.read_text() == "so be it"

    play(tmp_path, story)


@pytest.mark.parametrize(("grace_s", "least_s"), [(1, 0.9), (0, 0.0)])
def test_who_ignores_sigterm_is_killed_after_the_grace(
    tmp_path: Path, grace_s: int, least_s: float
) -> None:
    async def story(client: Client) -> None:
        container = await client.started({"fleet.emulator/stop-time": "never"})
        begun = time.monotonic()
        await client.call("StopContainer", container_id=container, timeout=grace_s)
        assert time.monotonic() - begun >= least_s
        ended = await client.status(container)
        assert (ended.exit_code, ended.reason) == (137, "Error")

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("reason", "fails"),
    [("CreateContainerError", "CreateContainer"), ("RunContainerError", "StartContainer")],
)
def test_a_container_cannot_be_started(tmp_path: Path, reason: str, fails: str) -> None:
    async def story(client: Client) -> None:
        sandbox, config = await client.sandbox({"fleet.emulator/start-failure": f"{reason}: no"})
        if fails == "CreateContainer":
            container = {"metadata": {"name": "c"}, "image": {"image": IMAGE}}
            said = await client.error(fails, pod_sandbox_id=sandbox, config=container)
            assert said == (grpc.StatusCode.UNKNOWN, "no")
            return
        container_id = await client.container(sandbox, config)
        said = await client.error(fails, container_id=container_id)
        assert said == (grpc.StatusCode.UNKNOWN, "no")
        status = await client.status(container_id)
        assert (status.state, status.exit_code, status.reason) == (EXITED, 128, "StartError")

    play(tmp_path, story)


def test_images_are_listed_pulled_and_removed(tmp_path: Path) -> None:
    name = "docker.io/library/nginx:1"

    async def story(client: Client) -> None:
        listed = (await client.call("ListImages")).images
        assert {IMAGE} < {tag for each in listed for tag in each.repo_tags}
        before = (await client.call("ImageFsInfo")).image_filesystems[0].used_bytes.value
        assert not (await client.call("ImageStatus", image={"image": "nginx:1"})).HasField("image")
        _, config = await client.sandbox({"fleet.emulator/image-size": "50M"})
        pulled = await client.call("PullImage", image={"image": "nginx:1"}, sandbox_config=config)
        found = (await client.call("ImageStatus", image={"image": "nginx:1"})).image
        assert (found.id, found.size, list(found.repo_tags)) == (
            pulled.image_ref,
            50_000_000,
            [name],
        )
        used = (await client.call("ImageFsInfo")).image_filesystems[0].used_bytes.value
        assert used == before + 50_000_000
        await client.call("RemoveImage", image={"image": found.id})
        assert not (await client.call("ImageStatus", image={"image": "nginx:1"})).HasField("image")

    play(tmp_path, story)


def test_an_image_has_a_user_that_is_not_root_for_who_asks_for_one(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        request = {"image": {"image": IMAGE}}
        assert (await client.call("ImageStatus", **request)).image.uid.value == 0
        sandbox, config = await client.sandbox()
        uid = (await client.call("ImageStatus", **request)).image.uid.value
        assert uid == 65532
        context = {"security_context": {"run_as_user": {"value": uid}}}
        container = await client.container(sandbox, config, linux=context)
        user = (await client.status(container)).user.linux
        assert (user.uid, user.gid, list(user.supplemental_groups)) == (65532, 65532, [65532])
        assert (await client.call("ImageStatus", **request)).image.uid.value == 0

    play(tmp_path, story, pod(securityContext={"runAsNonRoot": True}))


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        ("NotFound", grpc.StatusCode.NOT_FOUND, "failed to pull and unpack image"),
        ("Unauthorized", grpc.StatusCode.UNKNOWN, "failed to pull and unpack image"),
        ("RegistryUnavailable", grpc.StatusCode.UNKNOWN, "RegistryUnavailable: failed"),
    ],
)
def test_a_pull_fails_as_declared(
    tmp_path: Path, error: str, code: grpc.StatusCode, words: str
) -> None:
    async def story(client: Client) -> None:
        _, config = await client.sandbox({"fleet.emulator/pull-error": error})
        request = {"image": {"image": "private/app:1"}, "sandbox_config": config}
        said = await client.error("PullImage", **request)
        assert (said[0], said[1].startswith(words)) == (code, True)
        if error == "Unauthorized":
            await client.call("PullImage", auth={"username": "me"}, **request)

    play(tmp_path, story)


def test_a_pull_takes_its_time(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        _, config = await client.sandbox({"fleet.emulator/pull-time": "2s"})
        begun = time.monotonic()
        request = {"image": {"image": "app:1"}, "sandbox_config": config}
        await asyncio.gather(*(client.call("PullImage", **request) for _ in range(2)))
        assert 2 <= time.monotonic() - begun < 4  # beside each other

    play(tmp_path, story)


def test_stats_are_those_of_the_behaviour(tmp_path: Path) -> None:
    notes = {"fleet.emulator/memory-usage": "64Mi", "fleet.emulator/cpu-usage": "250m"}

    async def story(client: Client) -> None:
        container = await client.started(notes)
        stats = (await client.call("ContainerStats", container_id=container)).stats
        assert stats.memory.working_set_bytes.value == 64 << 20
        assert stats.cpu.usage_nano_cores.value == 250_000_000
        [listed] = (await client.call("ListContainerStats")).stats
        assert listed.attributes.id == container
        [sandbox] = (await client.call("ListPodSandboxStats")).stats
        assert sandbox.linux.memory.working_set_bytes.value == 64 << 20

    play(tmp_path, story)


def test_resources_are_updated(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        linux = {"resources": {"cpu_shares": 102, "memory_limit_in_bytes": 1 << 20}}
        container = await client.started(linux=linux)
        resources = {"cpu_shares": 204}
        await client.call("UpdateContainerResources", container_id=container, linux=resources)
        found = (await client.status(container)).resources.linux
        assert (found.cpu_shares, found.memory_limit_in_bytes) == (204, 1 << 20)

    play(tmp_path, story)


def test_no_address_is_free(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        for number in range(253):
            config = {"metadata": {"name": "p", "namespace": "d", "uid": f"uid-{number}"}}
            made = client.call("RunPodSandbox", config=config)
            if number == 0:
                await made
                pending = []
            else:
                pending.append(made)
        await asyncio.gather(*pending)
        code, text = await client.error(
            "RunPodSandbox", config={"metadata": {"name": "p", "uid": "last"}}
        )
        assert code is grpc.StatusCode.UNKNOWN
        assert "no IP addresses available" in text

    play(tmp_path, story)


def test_a_handler_that_is_not_there_makes_no_sandbox(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        metadata = {"name": "p", "namespace": "default", "uid": "1"}
        config = {"metadata": metadata}
        code, text = await client.error("RunPodSandbox", config=config, runtime_handler="nobodys")
        assert code is grpc.StatusCode.UNKNOWN
        assert text.endswith('no runtime for "nobodys" is configured')

    play(tmp_path, story)


def test_events_are_told_to_who_listens(tmp_path: Path) -> None:
    async def story() -> None:
        server = CriServer(MACHINE, tmp_path / "cri.sock", from_pods())
        await server.start()
        async with grpc.aio.insecure_channel(server.address) as channel:
            [method] = [
                each
                for each in service("RuntimeService").methods
                if each.name == "GetContainerEvents"
            ]
            watch = channel.unary_stream(
                path(method),
                request_serializer=request_class(method).SerializeToString,
                response_deserializer=response_class(method).FromString,
            )(message_class("GetEventsRequest")())
            await asyncio.sleep(0.2)
            container = await Client(channel).started({"fleet.emulator/run-time": "50ms"})
            kinds = []
            async for event in watch:
                if event.container_id == container:
                    kinds.append(event.container_event_type)
                if len(kinds) == 3:
                    break
            watch.cancel()
            assert kinds == [
                value(f"CONTAINER_{name}_EVENT") for name in ("CREATED", "STARTED", "STOPPED")
            ]
        await server.stop()

    asyncio.run(story())
