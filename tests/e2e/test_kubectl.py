"""What people type of the rest: older logs, many pods' logs, attach, debug, what probes find.

Lines are compared with those of one reading that has them all: a log only grows.
"""

import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.e2e_world import SUITES_PROGRAMS, Json, World, condition, eventually, read_until

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TICKS = "i=0; while true; do echo line $i; i=$((i + 1)); sleep 1; done"
ONCE = (
    "if [ -f /data/been ]; then echo second; sleep 3600; fi; touch /data/been; echo first; exit 7"
)
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
WANTED = 4
"""Lines that a log has before it is looked at."""


def container(name: str, script: str, **fields: object) -> Json:
    return {"name": name, "image": "busybox", "command": ["sh", "-c", script], **fields}


def pod(name: str, *containers: Json, labels: dict[str, str] | None = None, **spec: object) -> Json:
    body = {"containers": list(containers), "terminationGracePeriodSeconds": 1, **spec}
    metadata = {"name": name, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


@pytest.fixture(scope="module")
def ready(world: World) -> Iterator[World]:
    """Run two nodes, with a pod that says a line each second."""
    with world.spawn("typed", 2, SUITES_PROGRAMS) as run:
        run.until_ready()
        world.apply(pod("ticks", container("c", TICKS)))
        world.kubectl("wait", "--for=condition=Ready", "pod/ticks", "--timeout=240s")
        yield world
        world.kubectl("delete", "pod", "--all", "--grace-period=0", "--force", "--wait=false")
        run.end_well_or_late()
    world.assert_nothing_left("typed")


def lines(world: World, *arguments: str) -> list[str]:
    return world.kubectl("logs", *arguments).splitlines()


def stamped(world: World, *arguments: str) -> list[str]:
    """Return the lines of a log with their times, once there are a few."""
    found: list[str] = []

    def is_long() -> bool:
        found[:] = lines(world, "ticks", "--timestamps", *arguments)
        return len(found) >= WANTED

    eventually(is_long, "a few lines")
    return found


def failed(world: World, *arguments: str, stdin: str = "") -> tuple[int, str]:
    """Run what may fail; return its exit code, and what it printed."""
    command = (*world.info.kubectl, f"--kubeconfig={world.info.kubeconfig}", *arguments)
    done = subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_since_a_time_leaves_out_what_came_before(ready: World) -> None:
    known = stamped(ready)
    assert known[0].endswith(" line 0")
    second = known[2].partition(".")[0]  # kubectl sends whole seconds
    since = lines(ready, "ticks", "--timestamps", f"--since-time={second}Z")
    # A line of that very second may be one before.
    first = next(at for at, line in enumerate(known) if line >= second)
    assert first in {1, 2}
    assert since[: len(known) - first] == known[first:]


def test_since_a_while_shows_the_end(ready: World) -> None:
    known = stamped(ready)
    assert lines(ready, "ticks", "--timestamps", "--since=1h")[: len(known)] == known
    assert known[0] not in lines(ready, "ticks", "--timestamps", "--since=1s")


def test_tail_counts_lines_from_the_end(ready: World) -> None:
    known = stamped(ready)
    shown = lines(ready, "ticks", "--tail=2", "--timestamps")
    assert len(shown) == 2
    after = stamped(ready)
    assert shown == after[after.index(shown[0]) :][:2]
    assert known == after[: len(known)]
    assert lines(ready, "ticks", "--tail=0") == []


def test_the_previous_instance_has_a_log_of_its_own(ready: World) -> None:
    where = 'previous terminated container "c" in pod "ticks" not found'
    code, said = failed(ready, "logs", "--previous", "ticks")
    assert (code, where in said) == (1, True), said
    mount = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    volumes = [{"name": "data", "emptyDir": {}}]
    ready.apply(pod("again", container("c", ONCE, **mount), volumes=volumes))
    eventually(lambda: failed(ready, "logs", "again") == (0, "second\n"), "it runs again")
    assert lines(ready, "again", "--previous") == ["first"]
    [status] = ready.get("pod", "again")["status"]["containerStatuses"]
    assert status["lastState"]["terminated"]["exitCode"] == 7
    assert status["restartCount"] == 1


def test_all_containers_of_all_selected_pods(ready: World) -> None:
    for name in ("one", "two"):
        ready.apply(
            pod(
                name,
                container("a", f"echo a of {name}; sleep 3600"),
                container("b", f"echo b of {name}; sleep 3600"),
                labels={"app": "many"},
                initContainers=[container("i", f"echo i of {name}")],
            )
        )
    ready.kubectl("wait", "--for=condition=Ready", "pod", "-l", "app=many", "--timeout=240s")
    assert sorted(lines(ready, "one", "--all-containers")) == ["a of one", "b of one", "i of one"]
    assert lines(ready, "one", "-c", "b") == ["b of one"]
    chosen = lines(ready, "-l", "app=many", "--all-containers", "--prefix")
    assert sorted(chosen) == sorted(
        f"[pod/{name}/{part}] {part} of {name}" for name in ("one", "two") for part in "iab"
    )
    assert sorted(lines(ready, "-l", "app=many", "-c", "a")) == ["a of one", "a of two"]


def test_attach_speaks_to_the_shell_that_runs(ready: World) -> None:
    shell = {"name": "c", "image": "busybox", "command": ["sh"], "stdin": True, "stdinOnce": True}
    ready.apply(pod("hears", shell, restartPolicy="Never"))
    ready.kubectl("wait", "--for=condition=Ready", "pod/hears", "--timeout=240s")
    code, said = failed(ready, "attach", "-i", "hears", stdin="echo heard $((6 * 7))\nexit 3\n")
    assert (code, "heard 42\n" in said) == (0, True), said
    eventually(lambda: ready.get("pod", "hears")["status"]["phase"] == "Failed", "it has ended")
    [status] = ready.get("pod", "hears")["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 3


def test_debug_opens_a_shell_beside_the_container(ready: World) -> None:
    own, theirs = pty.openpty()
    command = (*ready.info.kubectl, f"--kubeconfig={ready.info.kubeconfig}", "debug", "-it")
    with subprocess.Popen(
        (*command, "ticks", "--image=busybox", "--container=shell", "--", "sh"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as typed:
        os.close(theirs)
        try:
            read_until(own, b"# ")
            os.write(own, b"echo $((6 * 7)) > /tmp/x; cat /tmp/x\r")
            read_until(own, b"42\r\n")
            os.write(own, b"exit 0\r")
            assert typed.wait(60) == 0
        finally:
            typed.kill()
            os.close(own)
    [status] = ready.get("pod", "ticks")["status"]["ephemeralContainerStatuses"]
    assert status["name"] == "shell"


def test_debug_makes_a_copy_of_a_pod(ready: World) -> None:
    copied = ("--copy-to=copied", "--image=busybox", "--container=extra", "--", "sleep", "3600")
    ready.kubectl("debug", "ticks", *copied)
    ready.kubectl("wait", "--for=condition=Ready", "pod/copied", "--timeout=240s")
    assert lines(ready, "copied", "-c", "c")[0] == "line 0"
    assert ready.kubectl("exec", "copied", "-c", "extra", "--", "echo", "here") == "here\n"


def test_debug_of_a_node_ends_and_says_where_it_was(ready: World) -> None:
    node = "typed-00001"
    before = {pod["metadata"]["name"] for pod in ready.items("pods")}
    ready.kubectl("debug", f"node/{node}", "--image=busybox", "--", "sh", "-c", "hostname; id -u")
    [name] = {pod["metadata"]["name"] for pod in ready.items("pods")} - before
    eventually(lambda: ready.get("pod", name)["status"]["phase"] == "Succeeded", "it has ended")
    assert ready.kubectl("logs", name) == f"{node}\n0\n"
    ready.kubectl("delete", "pod", name, "--wait=false")


def test_a_container_prints_its_environment(ready: World) -> None:
    """As the tests of the Kubernetes project have it do, which read its log once it has ended."""
    named = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    given = [{"configMapRef": {"name": "printed"}}]
    printing = container("c", "env", env=[named, address], envFrom=given)
    ready.kubectl("create", "configmap", "printed", "--from-literal=GIVEN=value-1")
    ready.apply(pod("prints", printing, restartPolicy="Never"))
    eventually(lambda: ready.get("pod", "prints")["status"]["phase"] == "Succeeded", "it has ended")
    printed = ready.kubectl("logs", "prints").splitlines()
    ip = ready.get("pod", "prints")["status"]["podIP"]
    for line in (
        f"POD_IP={ip}",
        "GIVEN=value-1",
        "POD_NAME=prints",
        "HOSTNAME=prints",
        "KUBERNETES_SERVICE_PORT=443",
    ):
        assert line in printed


def test_folders_are_copied_both_ways(ready: World, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "deep" / "deeper").mkdir(parents=True)
    texts = {"a": "first\n", "deep/b": "", "deep/deeper/c": "x" * 100_000}
    for name, text in texts.items():
        (there / name).write_text(text)
    ready.kubectl("cp", str(there), "ticks:/tmp/folder", "-c", "c")
    ready.kubectl("cp", "ticks:/tmp/folder", str(tmp_path / "back"), "-c", "c")
    found = {
        str(each.relative_to(tmp_path / "back")): each.read_text()
        for each in (tmp_path / "back").rglob("*")
        if each.is_file()
    }
    assert found == texts


def test_a_probe_finds_what_a_command_wrote(ready: World) -> None:
    probe = {"exec": {"command": ["test", "-f", "/tmp/healthy"]}, "periodSeconds": 1}
    ready.apply(
        pod("probed", container("c", "touch /tmp/healthy; sleep 3600", readinessProbe=probe))
    )

    def is_ready(wanted: str) -> bool:
        found = ready.get("pod", "probed")
        return found["status"]["phase"] == "Running" and condition(found, "Ready") == wanted

    eventually(lambda: is_ready("True"), "it runs, and is Ready")
    ready.kubectl("exec", "probed", "--", "rm", "/tmp/healthy")
    eventually(lambda: is_ready("False"), "the probe finds no file any more")
    ready.kubectl("exec", "probed", "--", "touch", "/tmp/healthy")
    eventually(lambda: is_ready("True"), "the probe finds the file again")


def test_a_pod_has_its_service_accounts_token(ready: World) -> None:
    def read(name: str) -> str:
        return ready.kubectl("exec", "ticks", "-c", "c", "--", "cat", f"{TOKEN}/{name}")

    assert read("namespace") == "default"
    assert read("ca.crt") == ready.info.ca_file.read_text()
    token = read("token")
    kubeconfig = ready.user(ready.root / "pods.kubeconfig", token)
    who = ready.kubectl("auth", "whoami", "-o", "json", kubeconfig=kubeconfig)
    assert '"system:serviceaccount:default:default"' in who
    assert "authentication.kubernetes.io/pod-name" in who
    assert '"ticks"' in who
