"""What a script finds that may not write: of its image, of a volume that is mounted so."""

from collections.abc import Mapping
from types import MappingProxyType

import orjson
import pytest

from fleet.clock import Draws
from fleet.k8s.pods import Pod
from fleet.runtime.command import command_of, run_around
from fleet.runtime.runtime import Runtime
from fleet.wire.api.decode_pod import decode_pod

LOCKED = {"securityContext": {"readOnlyRootFilesystem": True}}
BUSYBOX = "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"
WHY = "Read-only file system"


def pod(
    *command: str,
    read_only: bool = False,
    image: str = BUSYBOX,
    more: Mapping[str, object] = MappingProxyType({}),
) -> Pod:
    mount = {"name": "d", "mountPath": "/d", "readOnly": read_only}
    container = {"name": "c", "image": image, "command": list(command), "volumeMounts": [mount]}
    volumes = [{"name": "d", "emptyDir": {}}]
    spec = {"containers": [{**container, **more}], "volumes": volumes}
    metadata = {"name": "p", "namespace": "n", "uid": "u-1"}
    return decode_pod(orjson.dumps({"metadata": metadata, "spec": spec, "status": {}}))


def run(one: Pod) -> tuple[int, str]:
    runtime = Runtime(1, "192.0.2.1", "10.0.0.0/24", Draws(1))
    runtime.create_sandbox(one)
    [spec] = one.spec.containers
    around = runtime.around(one, spec, 0, 0, 1)
    assert around is not None
    done = run_around(command_of(spec), around)
    assert done.run_ns is not None
    return done.exit_code, done.text("")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo test > /file", f"/bin/sh: can't create /file: {WHY}"),
        ("touch mark", f"touch: mark: {WHY}"),
        ("mkdir /tmp/a", f"mkdir: can't create directory '/tmp/a': {WHY}"),
        ("cp /etc/hostname /x", f"cp: can't create '/x': {WHY}"),
        ("rm /etc/hostname", f"rm: can't remove '/etc/hostname': {WHY}"),
    ],
)
def test_a_root_that_cannot_be_written(script: str, said: str) -> None:
    assert run(pod("/bin/sh", "-c", script, more=LOCKED)) == (1, f"{said}\n")
    code, _ = run(pod("/bin/sh", "-c", script))
    assert code == 0


def test_volumes_and_devices_of_such_a_container_can_be_written() -> None:
    script = "echo 1 > /d/f && echo 2 > /dev/null && echo 3 > /dev/termination-log && cat /d/f"
    assert run(pod("sh", "-c", script, more=LOCKED)) == (0, "1\n")


def test_after_a_failed_redirection_a_script_goes_on() -> None:
    code, said = run(pod("sh", "-c", "echo 1 > /f; echo $?; echo 2 > /f || exit 7", more=LOCKED))
    assert (code, said) == (7, f"sh: can't create /f: {WHY}\n1\nsh: can't create /f: {WHY}\n")


def test_a_volume_that_is_mounted_so() -> None:
    code, said = run(pod("sh", "-c", "echo 1 > /d/f", read_only=True))
    assert (code, said) == (1, f"sh: can't create /d/f: {WHY}\n")
    asked = ("/agnhost", "mounttest", "--new_file_0644=/d/f", "--file_mode=/d/f")
    code, said = run(pod(*asked, read_only=True, image="agnhost:2.59"))
    assert code == 1
    assert said.startswith('error writing new file "/d/f": open /d/f: read-only file system\n')


def test_a_process_begins_in_its_working_directory() -> None:
    assert run(pod("sh", "-c", "touch mark && ls /mark && pwd")) == (0, "/mark\n/\n")
    where = {"workingDir": "/d"}
    own = pod("sh", "-c", "touch mark && ls /d && pwd", image="example.org/app:1", more=where)
    assert run(own) == (0, "mark\n/d\n")
