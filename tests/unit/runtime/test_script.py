"""What scripts find around them: files in volumes, variables from the pod."""

import pytest

from fleet.k8s.scripts import EnvFrom, EnvRef, MountSpec, ScriptSpec, Variable
from fleet.runtime.script import (
    expand,
    mount_error,
    subscripted,
    variables_of,
)
from fleet.wire.api.decode_script import container_script


def test_variables_come_from_values_and_fields_and_refer_to_earlier_ones() -> None:
    spec = ScriptSpec(
        (
            Variable("A", "1"),
            Variable("B", "$(A)2$(C)$$(A)"),
            Variable("C", source=EnvRef("Field", "metadata.name")),
            Variable("D", source=EnvRef("")),
        )
    )
    known = variables_of(spec, lambda source: {"metadata.name": "pod"}.get(source.key))
    assert known == {"A": "1", "B": "12$(C)$(A)", "C": "pod"}
    assert expand("sleep $(A)", {"A": "5"}) == "sleep 5"
    assert subscripted("metadata.labels['a.b/c']") == ("labels", "a.b/c")
    assert subscripted("metadata.name") is None


@pytest.mark.parametrize(
    ("mount", "error"),
    [
        (MountSpec("/d", "d", "logs"), ""),
        (MountSpec("/d", "d", "", "$(NAME)/logs"), ""),
        (
            MountSpec("/d", "d", "", "$(UP)"),
            "unable to provision SubPath `..`: must not contain '..'",
        ),
        (MountSpec("/d", "d", "", "$(ROOT)"), "error SubPath `/tmp` must not be an absolute path"),
        (MountSpec("/d", "d", "", "$(X)$(EMPTY)"), "missing value for EMPTY, X"),
        (MountSpec("/d", "d", "", "$(SECRET)$(X)"), ""),
    ],
)
def test_a_path_within_a_volume_stays_there(mount: MountSpec, error: str) -> None:
    known = {"NAME": "web", "UP": "..", "ROOT": "/tmp", "EMPTY": ""}
    spec = ScriptSpec((Variable("SECRET", source=EnvRef("")),), (mount,))
    assert mount_error(spec, known) == error


@pytest.mark.parametrize(
    ("image", "ends"),
    [
        ("busybox", True),
        ("docker.io/library/alpine:3", True),
        ("registry.example/mirror/ubuntu@sha256:00", True),
        ("nginx", False),
        ("busybox.example/app", False),
    ],
)
def test_a_shell_without_an_input_ends_at_once(image: str, ends: bool) -> None:  # noqa: FBT001
    assert container_script({"image": image}) == (
        ScriptSpec(entry_point=("true",)) if ends else None
    )
    assert container_script({"image": image, "stdin": True}) is None
    assert container_script({"image": image, "args": ["serve"]}) is None


def test_a_command_that_looks_around_is_told_from_others() -> None:
    file = {"volumeName": "v", "path": "e", "key": "k", "optional": True}
    env = [
        {"name": "A", "value": "1"},
        {"name": "I", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['i']"}}},
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "L", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "F", "valueFrom": {"fileKeyRef": file}},
    ]
    mounts = [{"name": "data", "mountPath": "/data", "subPath": "x"}]
    container = {
        "env": env,
        "volumeMounts": mounts,
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}],
    }
    found = container_script(container | {"command": ["sh", "-c"], "args": ["cat /data/$A"]})
    assert found == ScriptSpec(
        (
            Variable("A", "1"),
            Variable("I", source=EnvRef("Field", "metadata.labels['i']")),
            Variable("S", source=EnvRef("Secret", "k", "s")),
            Variable("L", source=EnvRef("Resource", "limits.cpu")),
            Variable("F", source=EnvRef("File", "k", "v", path="e", optional=True)),
        ),
        (MountSpec("/data", "data", "x"),),
        env_from=(EnvFrom("ConfigMap", "cm", "P_"),),
    )
    for command in (["sh", "-c", "exit $A"], ["sh", "-c", "date; exit 3"]):
        found = container_script(container | {"command": command})
        assert found is not None
        assert found.is_read
    for command in ([], ["nginx", "/data/$A"], ["sh", "-c", "sleep 1; exit 3"]):
        found = container_script(container | {"command": command})
        assert found is not None
        assert not found.is_read
    assert container_script({"command": ["nginx"]}) is None
