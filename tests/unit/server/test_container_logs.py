"""Whose log is read, and why there is none, as the kubelet says it."""

from types import SimpleNamespace
from typing import cast

from world.pod_world import UID, World, container, make_pod

from fleet.k8s.effects import Outbox
from fleet.k8s.pods import MountSpec, ScriptSpec, TerminatedState, VolumeSpec
from fleet.k8s.streams import LogOptions, Refusal
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.pod_worker import PodKill
from fleet.runtime.container_log import LogReader
from fleet.server.host_interface import container_logs

LOGS = (("fleet.emulator/logs", "{linesPerSecond: 1, template: 'line {{index}} of {{pod}}'}"),)


def kubelet(world: World) -> VirtualKubelet:
    return cast("VirtualKubelet", SimpleNamespace(pods=world.loop, env=world.env))


def ask(world: World, options: LogOptions | None = None, name: str = "c") -> str | Refusal:
    pod = next(iter(world.loop))
    given = options or LogOptions()
    reader = container_logs(kubelet(world), pod, name, given, world.now_ns)
    if isinstance(reader, Refusal):
        return reader
    assert isinstance(reader, LogReader)
    return reader.read(1 << 20, world.now_ns).data.decode()


def test_a_container_that_runs_has_a_log() -> None:
    world = World()
    world.create(make_pod(annotations=LOGS))
    world.run(10)
    found = ask(world, LogOptions(tail_lines=1))
    assert isinstance(found, str)
    assert found.endswith(" of web\n")
    assert ask(world, name="x") == Refusal(400, 'container "x" in pod "web" is not available')
    text = 'previous terminated container "c" in pod "web" not found'
    assert ask(world, LogOptions(previous=True)) == Refusal(400, text)


def test_a_container_that_waits_has_none() -> None:
    world = World()
    world.create(make_pod())
    world.run(0.2)
    text = 'container "c" in pod "web" is waiting to start: ContainerCreating'
    assert ask(world) == Refusal(400, text)


def test_a_restart_leaves_the_log_before_it() -> None:
    world = World()
    world.create(make_pod(container("c", "sh", "-c", "echo hello; sleep 5; exit 1")))
    world.run(9)
    assert world.container().restart_count > 0
    assert ask(world) == "hello\n"
    assert ask(world, LogOptions(previous=True)) == "hello\n"


def test_a_handler_of_sigterm_writes_to_the_log() -> None:
    world = World()
    script = "trap 'echo bye; sleep 3; exit 0' TERM; echo hello; while true; do sleep 1; done"
    world.create(make_pod(container("c", "sh", "-c", script)))
    world.run(9)
    world.delete()
    world.run(2)
    assert ask(world) == "hello\nbye\n"


def test_each_instance_has_the_log_of_what_it_found() -> None:
    """Both start in one second; the file of the first is there for the second alone."""
    script = "[ -f /data/been ] && echo second && sleep 9d; touch /data/been; echo first"
    mounts = (MountSpec("/data", "data", ""),)
    words = ("sh", "-c", f"{script}; exit 7")
    world = World()
    world.create(
        make_pod(
            container("c", *words, script=ScriptSpec(mounts=mounts)),
            volumes=(VolumeSpec("data", "emptyDir"),),
        )
    )
    world.run(30)
    assert ask(world) == "second\n"
    assert ask(world, LogOptions(previous=True)) == "first\n"


def test_a_pod_that_is_done_keeps_its_logs() -> None:
    world = World()
    script = "echo one; sleep 3.4; echo two; exit 0"
    world.create(make_pod(container("c", "sh", "-c", script), restart_policy="Never"))
    world.run(60)
    assert world.pods[UID].status.phase == "Succeeded"
    assert world.loop.runtime.sandbox(UID) is None
    assert ask(world) == "one\ntwo\n"


def test_a_container_of_which_nothing_is_known_says_one_line() -> None:
    world = World()
    world.create(make_pod())
    world.run(60)
    assert ask(world) == "nginx:1 is started as container c of default/web\n"


def test_a_log_goes_with_its_container() -> None:
    """Of a container a kubelet keeps the instance that ended last; of an evicted pod none."""
    world = World()
    world.create(make_pod(container("c", "sh", "-c", "echo hello; sleep 5; exit 1")))
    world.run(30)
    last = world.container().last_state
    assert isinstance(last, TerminatedState)
    gone = "unable to retrieve container logs for "
    assert ask(world, LogOptions(previous=True)) == Refusal(400, gone + last.container_id)
    assert ask(world) == "hello\n"
    out: Outbox = []
    world.loop._syncer.kill_pod(world.loop.workers[UID], PodKill("Evicted", "", 1), world.turn(out))
    world.execute(out)
    world.run(60)
    assert ask(world) == Refusal(400, gone + world.container().container_id)
