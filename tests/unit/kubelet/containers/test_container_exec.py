"""Commands in containers as a kubelet runs them: files, variables, the container's own script."""

from types import SimpleNamespace
from typing import cast

import pytest
from world.pod_world import UID, World, container, make_pod, token_of

from fleet.k8s.effects import Outbox, WatchEvent, WatchKind
from fleet.k8s.objects import ServicePort, ServiceView
from fleet.k8s.pods import (
    EventType,
    ObjectSource,
    Pod,
    PodUid,
    ProbeSpec,
    TokenSource,
    VolumeSpec,
)
from fleet.k8s.scripts import EnvFrom, EnvRef, MountSpec, ScriptSpec, Variable
from fleet.k8s.streams import Output, Refusal
from fleet.k8s.volumes import ObjectData
from fleet.kubelet.containers.container_exec import AttachSession, ExecSession
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.kubelet.turn import Turn
from fleet.server.host_interface import attach_to, exec_in

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


def run(world: World, *words: str) -> Output:
    session = exec_in(
        kubelet(world), pod_of(world), "c", words, stdin=False, tty=False, now_ns=world.now_ns
    )
    assert isinstance(session, ExecSession)
    found = session.advance(FAR, world.now_ns)
    world.execute(session.out)
    return found


def say(world: World, script: str) -> str:
    return run(world, "sh", "-c", script).stdout.decode()


def started(*command: str, script: ScriptSpec | None = None, **fields: object) -> World:
    world = World()
    world.create(make_pod(container("c", *command, script=script), **fields))  # type: ignore[arg-type]
    world.run(10)
    assert world.container().state.__class__.__name__ == "RunningState"
    return world


def show(world: World, kind: WatchKind, name: str, **texts: str) -> None:
    record = ObjectData(name, "1", tuple(texts), texts=tuple(texts.values()))
    world.deliver(WatchEvent(kind, EventType.MODIFIED, record, "default", name))


def test_only_a_container_that_runs_takes_commands() -> None:
    world = started("sh", "-c", "sleep 20")
    args = (kubelet(world), pod_of(world))
    refused = exec_in(*args, "x", ("ls",), stdin=False, tty=False, now_ns=world.now_ns)
    assert refused == Refusal(500, 'container not found ("x")')
    session = exec_in(*args, "c", ("sleep", "99"), stdin=False, tty=False, now_ns=world.now_ns)
    assert isinstance(session, ExecSession)
    assert session.advance(FAR, world.now_ns).exit_code is None
    world.run(15)
    assert session.advance(FAR, world.now_ns).exit_code == 137


def test_what_a_command_writes_the_script_sees() -> None:
    script = "until [ -f /tmp/go ]; do sleep 1; done; cat /tmp/go; exit 3"
    world = started("sh", "-c", script, script=ScriptSpec(), restart_policy="Never")
    world.run(60)
    assert world.container().state.__class__.__name__ == "RunningState"
    assert run(world, "sh", "-c", "echo gone > /tmp/go").exit_code == 0
    world.run(10)
    state = world.container().state
    assert getattr(state, "exit_code", None) == 3


def test_what_the_script_writes_a_command_sees_when_it_is_written() -> None:
    script = "echo one > /tmp/x; sleep 30; echo two > /tmp/x; sleep 900"
    world = started("sh", "-c", script, script=ScriptSpec())
    assert say(world, "cat /tmp/x") == "one\n"
    world.run(40)
    assert say(world, "cat /tmp/x") == "two\n"
    assert say(world, "rm /tmp/x; ls /tmp") == ""


def test_the_files_of_volumes_are_there() -> None:
    mounts = (
        MountSpec("/etc/config", "cm", ""),
        MountSpec("/etc/secret", "secret", ""),
        MountSpec("/etc/info", "info", ""),
        MountSpec("/scratch", "scratch", ""),
        MountSpec("/one.conf", "cm", "a.conf"),
    )
    volumes = (
        VolumeSpec("cm", "configMap", (ObjectSource("cm"),)),
        VolumeSpec("secret", "secret", (), (ObjectSource("s", keys=("k",), paths=("deep/key",)),)),
        VolumeSpec("scratch", "emptyDir"),
        VolumeSpec("none", "emptyDir"),
    )
    world = World()
    for key in (("cm", WatchKind.CONFIG_MAP), ("s", WatchKind.SECRET)):
        world.objects.add((key[1], "default", key[0]))
    spec = container("c", script=ScriptSpec(mounts=mounts, is_read=False))
    world.create(make_pod(spec, volumes=volumes))
    world.run(5)
    show(world, WatchKind.CONFIG_MAP, "cm", **{"a.conf": "x=1\n"})
    show(world, WatchKind.SECRET, "s", k="hush", other="no")
    world.run(10)
    assert say(world, "cat /etc/config/a.conf /one.conf") == "x=1\nx=1\n"
    assert say(world, "ls -R /etc/secret; cat /etc/secret/deep/key") == (
        "deep\n\n/etc/secret/deep:\nkey\nhush"
    )
    assert b"Read-only file system" in run(world, "touch", "/etc/config/b").stderr
    assert say(world, "echo y > /scratch/f; cat /scratch/f; ls /").startswith("y\n")
    assert "Kubernetes-managed" in say(world, "cat /etc/hosts")


def test_the_environment_is_a_kubelets() -> None:
    variables = (
        Variable("A", "1"),
        Variable("B", "$(A)-$(P_x)-$(WEB_SERVICE_HOST)-$(NONE)-$$(A)"),
        Variable("NAME", source=EnvRef("Field", "metadata.name")),
        Variable("CPU", source=EnvRef("Resource", "requests.cpu", divisor="1m")),
        Variable("KEY", source=EnvRef("Secret", "k", "s")),
    )
    script = ScriptSpec(variables, env_from=(EnvFrom("ConfigMap", "cm", "P_"),), is_read=False)
    world = World()
    resources = b'{"requests":{"cpu":"1500m"}}'
    sources = (ObjectSource("cm"),)
    volumes = (
        VolumeSpec("v", "configMap", sources),
        VolumeSpec("w", "secret", (), (ObjectSource("s"),)),
    )
    for name, kind in (("cm", WatchKind.CONFIG_MAP), ("s", WatchKind.SECRET)):
        world.objects.add((kind, "default", name))
    world.create(make_pod(container("c", script=script, resources_json=resources), volumes=volumes))
    world.run(10)
    show(world, WatchKind.CONFIG_MAP, "cm", x="9")
    show(world, WatchKind.SECRET, "s", k="hush")
    port = (ServicePort(80, "http"),)
    for key in (("default", "web"), ("default", "kubernetes"), ("other", "far")):
        world.env.services[key] = ServiceView(*key, "1", "10.0.0.9", port)
    found = dict(line.split("=", 1) for line in say(world, "env").splitlines())
    assert found["B"] == "1-9-10.0.0.9-$(NONE)-$(A)"
    assert (found["NAME"], found["CPU"], found["KEY"]) == ("web", "1500", "hush")
    assert found["KUBERNETES_SERVICE_HOST"] == "10.0.0.9"
    assert found["WEB_PORT_80_TCP"] == "tcp://10.0.0.9:80"
    assert found["WEB_SERVICE_PORT_HTTP"] == "80"
    assert found["HOSTNAME"] == "web"
    assert "FAR_SERVICE_HOST" not in found


def test_to_attach_is_to_hear_what_comes() -> None:
    world = started("sh", "-c", "while true; do echo tick; sleep 1; done")
    session = attach_to(
        kubelet(world), pod_of(world), "c", stdin=False, tty=False, now_ns=world.now_ns
    )
    assert isinstance(session, AttachSession)
    session.advance(FAR, world.now_ns)
    world.run(3)
    assert session.advance(FAR, world.now_ns).stdout == b"tick\n" * 3


@pytest.mark.parametrize("command", [("sh",), ()])
def test_a_shell_that_runs_is_talked_to_and_ends_with_its_container(
    command: tuple[str, ...],
) -> None:
    world = started(*command, restart_policy="Never")
    session = attach_to(
        kubelet(world), pod_of(world), "c", stdin=True, tty=False, now_ns=world.now_ns
    )
    assert isinstance(session, ExecSession)
    session.write(b"echo $HOSTNAME\nexit 5\n", world.now_ns)
    found = session.advance(FAR, world.now_ns)
    assert (found.stdout, found.exit_code) == (b"web\n", 5)
    world.execute(session.out)
    world.run(10)
    assert getattr(world.container(UID).state, "exit_code", None) == 5


def is_ready(world: World) -> bool:
    world.run(5)
    return world.container().ready


def test_a_probe_finds_what_a_command_wrote() -> None:
    probe = ProbeSpec("exec", command=("test", "-f", "/tmp/healthy"), period_s=1)
    script = "touch /tmp/healthy; sleep 900"
    world = World()
    world.create(
        make_pod(container("c", "sh", "-c", script, script=ScriptSpec(), readiness_probe=probe))
    )
    world.run(10)
    assert is_ready(world)
    assert say(world, "mv -v /tmp/healthy /tmp/ill") == "renamed '/tmp/healthy' -> '/tmp/ill'\n"
    assert not is_ready(world)
    say(world, "echo back > /tmp/healthy")
    assert is_ready(world)


def test_a_liveness_probe_that_a_command_breaks_restarts_the_container_alone() -> None:
    probe = ProbeSpec("exec", command=("cat", "/tmp/alive"), period_s=1, failure_threshold=1)
    world = World()
    script = "touch /tmp/alive; sleep 900"
    world.create(
        make_pod(container("c", "sh", "-c", script, script=ScriptSpec(), liveness_probe=probe))
    )
    world.run(10)
    say(world, "rm /tmp/alive")
    world.run(60)
    assert world.container().restart_count == 1  # the new one has its own file
    world.run(60)
    assert world.container().restart_count == 1


def test_the_scripts_own_changes_go_on_being_found() -> None:
    probe = ProbeSpec("exec", command=("test", "-f", "/tmp/healthy"), period_s=1)
    script = "touch /tmp/healthy; sleep 60; rm /tmp/healthy; sleep 60; touch /tmp/healthy; sleep 9d"
    world = World()
    world.create(
        make_pod(container("c", "sh", "-c", script, script=ScriptSpec(), readiness_probe=probe))
    )
    world.run(10)
    say(world, "touch /tmp/other")
    assert is_ready(world)
    world.run(60)
    assert not is_ready(world)
    world.run(60)
    assert is_ready(world)


def test_a_page_that_is_removed_is_not_found() -> None:
    probe = ProbeSpec("httpGet", port=80, path="/localhost.crt", period_s=1, failure_threshold=1)
    world = World()
    image = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
    world.create(
        make_pod(container("c", image=image, args=("test-webserver",), readiness_probe=probe))
    )
    world.run(10)
    assert is_ready(world)
    moved = run(world, "/bin/sh", "-x", "-c", "mv -v /localhost.crt /tmp/ || true")
    assert (moved.exit_code, moved.stderr) == (0, b"")
    assert not is_ready(world)
    say(world, "mv -v /tmp/localhost.crt / || true")
    assert is_ready(world)


def test_a_probe_whose_command_is_unknown_goes_on_succeeding() -> None:
    probe = ProbeSpec("exec", command=("/bin/health", "--deep"), period_s=1)
    world = World()
    world.create(make_pod(container("c", readiness_probe=probe)))
    world.run(10)
    say(world, "touch /tmp/anything")
    assert is_ready(world)


def test_a_pods_token_is_its_own() -> None:
    mounts = (MountSpec("/var/run/secrets/t", "t", ""),)
    source = TokenSource("", 3607, "token")
    volume = VolumeSpec("t", "projected", (), (), (source,))
    world = started(script=ScriptSpec(mounts=mounts), volumes=(volume,))
    assert say(world, "cat /var/run/secrets/t/token") == token_of(UID)
