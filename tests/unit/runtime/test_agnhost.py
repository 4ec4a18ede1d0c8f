"""What agnhost's programs say of the files of a pod, as the tests of Kubernetes read it."""

from collections.abc import Mapping

import orjson
import pytest

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.pods import Pod
from fleet.runtime.command import command_of, run_around
from fleet.runtime.runtime import Runtime
from fleet.runtime.shell.surroundings import CommandRun
from fleet.wire.api.decode_pod import decode_pod

IMAGE = "registry.k8s.io/e2e-test-images/agnhost:2.59"
PATH = "/etc/podinfo/"


def podinfo(**fields: object) -> dict[str, object]:
    def item(path: str, field: str, **more: object) -> dict[str, object]:
        return {"path": path, "fieldRef": {"fieldPath": f"metadata.{field}"}, **more}

    items = [
        item("name", "name"),
        item("secret/uid", "uid", mode=0o400),
        item("notes", "annotations"),
    ]
    return {"name": "info", "downwardAPI": {"items": items, **fields}}


def pod(volume: Mapping[str, object], *args: str, **spec: object) -> Pod:
    mount = {"name": volume["name"], "mountPath": PATH.rstrip("/")}
    container = {"name": "c", "image": IMAGE, "args": list(args), "volumeMounts": [mount]}
    metadata = {"name": "p", "namespace": "n", "uid": "u-1", "annotations": {"builder": "bar"}}
    body = {"containers": [container], "volumes": [volume], **spec}
    return decode_pod(orjson.dumps({"metadata": metadata, "spec": body, "status": {}}))


def run(one: Pod) -> CommandRun:
    runtime = Runtime(1, "192.0.2.1", "10.0.0.0/24", Draws(1))
    runtime.create_sandbox(one)
    [spec] = one.spec.containers
    around = runtime.around(one, spec, 0, 0, 1)
    assert around is not None
    return run_around(command_of(spec), around)


def said(one: Pod, code: int = 0) -> list[str]:
    done = run(one)
    assert (done.run_ns, done.exit_code) == (0, code)
    return [line for line in done.text("").splitlines() if line]


def test_what_a_volume_shows_has_its_mode() -> None:
    asked = (f"--file_content={PATH}name", f"--file_mode={PATH}name")
    content = f'content of file "{PATH}name": p'
    assert said(pod(podinfo(), "mounttest", *asked)) == [
        f'mode of file "{PATH}name": -rw-r--r--',
        content,
    ]
    [first, _] = said(pod(podinfo(defaultMode=0o400), "mounttest", *asked))
    assert first == f'mode of file "{PATH}name": -r--------'
    own = (f"--file_mode={PATH}secret/uid", f"--file_content={PATH}secret/uid")
    assert said(pod(podinfo(), "mounttest", *own))[0].endswith(": -r--------")
    group = {"securityContext": {"fsGroup": 1001}}
    assert said(pod(podinfo(), "mounttest", *own, **group))[0].endswith(": -r--r-----")


def test_annotations_are_shown_to_who_asks_for_them() -> None:
    one = pod(podinfo(), "mounttest", "--file_content", f"{PATH}notes")
    assert said(one) == [f'content of file "{PATH}notes": builder="bar"']
    assert not pod({"name": "d", "emptyDir": {}}).annotations


@pytest.mark.parametrize("medium", ["", "Memory"])
def test_an_empty_dir_is_open_and_takes_files(medium: str) -> None:
    volume = {"name": "d", "emptyDir": {"medium": medium}}
    path = f"{PATH}f"
    asked = (f"--fs_type={PATH}", f"--new_file_0666={path}", f"--file_perm={path}")
    user = {"securityContext": {"runAsUser": 1001, "fsGroup": 123}}
    kind, content, perms = said(pod(volume, "mounttest", *asked))
    assert kind.endswith(": tmpfs") == bool(medium)
    assert content == f'content of file "{path}": mount-tester new file'
    assert perms == f'perms of file "{path}": -rw-rw-rw-'
    [perms] = said(pod(volume, "mounttest", f"--file_perm={PATH}"))
    assert perms.endswith(": -rwxrwxrwx")
    owned = pod(volume, "mounttest", f"--new_file_0644={path}", f"--file_owner={path}", **user)
    assert said(owned)[1:] == [f'owner UID of "{path}": 1001', f'owner GID of "{path}": 123']
    [mode] = said(pod(volume, "mounttest", f"--file_mode={PATH}", **user))
    assert mode.endswith(": dgrwxrwxrwx")


def test_what_is_not_there_fails() -> None:
    asked = (f"--file_content={PATH}x", f"--file_mode={PATH}x")
    stat, content = said(pod({"name": "d", "emptyDir": {}}, "mounttest", *asked), code=1)
    assert stat == f'error from Stat("{PATH}x"): stat {PATH}x: no such file or directory'
    assert content.endswith(f'"{PATH}x": open {PATH}x: no such file or directory')


def test_a_file_is_read_again_every_two_seconds() -> None:
    loop = ("--break_on_expected_content=false", "--retry_time=10")
    done = run(pod(podinfo(), "mounttest", *loop, f"--file_content_in_loop={PATH}name"))
    assert done.run_ns == 10 * NS_PER_S
    assert [each.after_ns // NS_PER_S for each in done.written] == [0, 2, 4, 6, 8]


def test_the_words_of_a_command_line_are_printed() -> None:
    volume = {"name": "d", "emptyDir": {}}
    assert said(pod(volume, "entrypoint-tester", "a", "b")) == ["[/agnhost entrypoint-tester a b]"]


@pytest.mark.parametrize("args", [(), ("pause",)])
def test_without_a_program_it_waits(args: tuple[str, ...]) -> None:
    done = run(pod({"name": "d", "emptyDir": {}}, *args))
    assert (done.run_ns, done.text("")) == (None, "Paused\n")


def test_what_serves_runs_for_ever() -> None:
    [spec] = pod({"name": "d", "emptyDir": {}}, "netexec", "--http-port=80").spec.containers
    assert command_of(spec) == ("netexec", "--http-port=80")


def test_aliases_are_in_the_hosts_file() -> None:
    aliases = [{"ip": "123.45.67.89", "hostnames": ["foo", "bar"]}]
    asked = ("mounttest", "--file_content=/etc/hosts")
    lines = said(pod({"name": "d", "emptyDir": {}}, *asked, hostAliases=aliases))
    assert lines[0].endswith(": # Kubernetes-managed hosts file.")
    assert lines[-2:] == ["# Entries added by HostAliases.", "123.45.67.89\tfoo\tbar"]
