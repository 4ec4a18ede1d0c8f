"""Commands in containers as a kubelet runs them: files, variables, the container's own script."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp.web import BaseRequest
from world.pod_world import World, container, make_pod

from fleet.k8s.effects import NodeId, Outbox
from fleet.k8s.pods import Pod, PodUid, ProbeSpec, ScriptSpec, Variable
from fleet.k8s.streams import Output, Refusal
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.turn import Turn
from fleet.profile.kubelet_configuration import KubeletConfiguration
from fleet.server.endpoints import Asked, forwarded_pod, found_pod
from fleet.server.host_interface import (
    AttachSession,
    ExecSession,
    Session,
    attach_to,
    exec_in,
    port_of,
)

FAR = 1 << 20


def kubelet(world: World) -> VirtualKubelet:
    def on_container_changed(uid: PodUid, now_ns: int, out: Outbox) -> None:
        turn = Turn(world.facts, world.env, world.recorder, now_ns, out)
        world.loop.on_container_changed(uid, turn)

    found = SimpleNamespace(
        pods=world.loop, env=world.env, on_container_changed=on_container_changed
    )
    return cast("VirtualKubelet", found)


def pod_of(world: World) -> Pod:
    return next(iter(world.loop))


def begun(world: World, *words: str, tty: bool = False) -> ExecSession:
    at = (kubelet(world), pod_of(world), "c", words)
    session = exec_in(*at, stdin=False, tty=tty, now_ns=world.now_ns)
    assert isinstance(session, ExecSession)
    return session


def attached(
    world: World, name: str = "c", *, tty: bool = False, uid: str = ""
) -> Session | Refusal:
    at = (kubelet(world), pod_of(world), name)
    return attach_to(*at, uid=uid, stdin=False, tty=tty, now_ns=world.now_ns)


def forwarded(world: World, uid: str) -> Pod | Refusal:
    parameters = {"podNamespace": "default", "podID": "web", "uid": uid}
    assert found_pod(kubelet(world), parameters) == pod_of(world)  # whatever the UID
    asked = Asked(cast("BaseRequest", None), NodeId(0), KubeletConfiguration(), parameters)
    return forwarded_pod(asked, kubelet(world), world.now_ns)


def run(world: World, *words: str) -> Output:
    session = begun(world, *words)
    found = session.advance(FAR, world.now_ns)
    world.execute(session.out)
    return found


def say(world: World, script: str) -> str:
    return run(world, "sh", "-c", script).stdout.decode()


def started(*command: str, restart_policy: str = "Always", **fields: Any) -> World:
    """Run a container, of which the fields are more."""
    world = World()
    world.create(make_pod(container("c", *command, **fields), restart_policy=restart_policy))
    world.run(10)
    assert world.container().state.__class__.__name__ == "RunningState"
    return world


def scripted(script: str, **fields: Any) -> World:
    """Run a container whose script writes files that probes and commands see."""
    return started("sh", "-c", script, script=ScriptSpec(), **fields)


def test_only_a_container_that_runs_takes_commands() -> None:
    world = started("sh", "-c", "sleep 20", restart_policy="Never")
    args = (kubelet(world), pod_of(world))
    refused = exec_in(*args, "x", ("ls",), stdin=False, tty=False, now_ns=world.now_ns)
    assert refused == Refusal(500, 'container not found ("x")')
    assert attached(world, "x") == Refusal(500, "container x not found in pod web_default")
    assert attached(world, uid="other") == Refusal(500, "pod web_default not found")
    assert forwarded(world, "other") == Refusal(404, "pod not found")
    assert forwarded(world, args[1].uid) == args[1]
    session = begun(world, "sleep", "99")
    assert session.advance(FAR, world.now_ns).exit_code is None
    world.run(15)
    assert session.advance(FAR, world.now_ns).exit_code == 137
    refused_by_network = "dial tcp4 127.0.0.1:80: connect: connection refused"
    assert refused_by_network in str(port_of(*args, 80, world.now_ns))
    assert forwarded(world, args[1].uid) == Refusal(500, 'pod not found ("web_default")')


def test_what_a_command_writes_the_script_sees() -> None:
    script = "until [ -f /tmp/go ]; do sleep 1; done; cat /tmp/go; exit 3"
    env = ScriptSpec((Variable("A", "x"),))
    world = started("sh", "-c", script, script=env)
    assert run(world, "echo", "$(A)").stdout == b"$(A)\n"  # which only a shell would replace
    world.run(60)
    assert world.container().state.__class__.__name__ == "RunningState"
    assert run(world, "sh", "-c", "echo gone > /tmp/go").exit_code == 0
    world.run(10)
    last = world.container().last_state
    assert last is not None
    assert last.exit_code == 3


def test_what_the_script_writes_a_command_sees_when_it_is_written() -> None:
    world = scripted("echo one > /tmp/x; sleep 30; echo two > /tmp/x; sleep 900")
    assert say(world, "cat /tmp/x") == "one\n"
    world.run(40)
    assert say(world, "cat /tmp/x") == "two\n"
    assert run(world, "rm", "/tmp/x").exit_code == 0
    assert run(world, "cat", "/tmp/x").exit_code == 1


def test_to_attach_is_to_hear_what_comes() -> None:
    world = started("sh", "-c", "while true; do echo tick; sleep 1; done")
    sessions = attached(world), attached(world, tty=True)
    for session, said in zip(sessions, (b"tick\n", b"tick\r\n"), strict=True):
        assert isinstance(session, AttachSession)
        session.advance(FAR, world.now_ns)
        world.run(3)
        assert session.advance(FAR, world.now_ns).stdout == said * 3


def test_an_attachment_says_nothing_of_how_its_container_ended() -> None:
    world = started("sh", "-c", "sleep 20; exit 3")
    session = attached(world)
    assert isinstance(session, AttachSession)
    world.run(20)
    assert session.advance(FAR, world.now_ns).exit_code == 0


def is_ready(world: World) -> bool:
    world.run(5)
    return world.container().ready


def test_a_probe_finds_what_a_command_wrote() -> None:
    probe = ProbeSpec("exec", command=("test", "-f", "/tmp/healthy"), period_s=1)
    world = scripted("touch /tmp/healthy; sleep 900", readiness_probe=probe)
    assert is_ready(world)
    say(world, "rm /tmp/healthy")
    assert not is_ready(world)
    say(world, "echo back > /tmp/healthy")
    assert is_ready(world)


def test_a_liveness_probe_that_a_command_breaks_restarts_the_container_alone() -> None:
    probe = ProbeSpec("exec", command=("cat", "/tmp/alive"), period_s=1, failure_threshold=1)
    world = scripted("touch /tmp/alive; sleep 900", liveness_probe=probe)
    say(world, "rm /tmp/alive")
    world.run(60)
    assert world.container().restart_count == 1  # the new one has its own file
    world.run(60)
    assert world.container().restart_count == 1


def test_the_scripts_own_changes_go_on_being_found() -> None:
    probe = ProbeSpec("exec", command=("test", "-f", "/tmp/healthy"), period_s=1)
    script = "touch /tmp/healthy; sleep 60; rm /tmp/healthy; sleep 60; touch /tmp/healthy; sleep 9d"
    world = scripted(script, readiness_probe=probe)
    say(world, "touch /tmp/other")
    assert is_ready(world)
    world.run(60)
    assert not is_ready(world)
    world.run(60)
    assert is_ready(world)


def test_a_probe_whose_command_is_unknown_goes_on_succeeding() -> None:
    probe = ProbeSpec("exec", command=("/bin/health", "--deep"), period_s=1)
    world = started(readiness_probe=probe)
    say(world, "touch /tmp/anything")
    assert is_ready(world)


@pytest.mark.parametrize("words", [("nosuch",), ("sh", "-c", "nginx -s reload"), ("sh",)])
def test_a_command_that_is_not_read_says_where_to_declare_it(words: tuple[str, ...]) -> None:
    world = started()
    found = run(world, *words)
    assert (found.exit_code, found.stdout) == (126, b"")
    assert b"declare its answer in a PodBehavior" in found.stderr


def test_a_command_over_its_budget_fails() -> None:
    grows = "echo a > /tmp/a; while true; do cat /tmp/a /tmp/a >> /tmp/a; done"
    found = run(started(), "sh", "-c", grows)
    assert (found.exit_code, found.stderr) == (2, b"sh: it reads or prints too much\n")


def test_a_long_command_answers_as_it_goes() -> None:
    world = started()
    session = begun(world, "sh", "-c", "echo one; sleep 5; echo two; exit 4", tty=True)
    first = session.advance(FAR, world.now_ns)
    assert (first.stdout, first.exit_code) == (b"one\r\n", None)
    assert first.wake_ns == world.now_ns + 5_000_000_000
    world.run(5)
    last = session.advance(FAR, world.now_ns)
    assert (last.stdout, last.exit_code) == (b"two\r\n", 4)
