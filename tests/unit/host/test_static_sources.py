"""Manifests and where they come from: what is read, defaulted, refused, and noticed."""

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml
from world.profiles import HEAD

from fleet.clock import Draws
from fleet.errors import UsageError
from fleet.host.static_pods import ManifestError, StaticSource, parse_manifest
from fleet.k8s.static_pods import FNV_OFFSET, fnv128a
from fleet.kubelet.environment import Environment
from fleet.profile.loader import load_source, parse_documents
from fleet.profile.node_profile import NodeProfile

PATH = "/m/a.yaml"


def pod(name: str = "a", **spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "proxy:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


def text(*pods: dict[str, Any]) -> bytes:
    return b"---\n".join(yaml.safe_dump(each).encode() for each in pods)


def environment(directory: Path | None = None, **configuration: object) -> Environment:
    document = {**HEAD, "spec": {"kubeletConfiguration": configuration}}
    (found,) = parse_documents(yaml.safe_dump(document), "p.yaml")
    assert isinstance(found, NodeProfile)
    return Environment(found.compiled(directory=directory), Draws(1))


def names(env: Environment) -> list[str]:
    """Return the names of the pods that the directory holds."""
    return [each.template.name for each in env.static or ()]


def test_fnv_is_the_one_that_everybody_knows() -> None:
    assert fnv128a(b"") == FNV_OFFSET
    assert f"{fnv128a(b'foobar'):032x}" == "343e1662793c64bf6f0d3597ba446f18"
    assert fnv128a(b"bar", fnv128a(b"foo")) == fnv128a(b"foobar")


def test_a_manifest_gets_the_defaults_that_kubelets_read() -> None:
    limits = {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    found = parse_manifest(text(pod(containers=[{"name": "c", "image": "proxy", **limits}])), PATH)
    template = found.template
    assert (template.namespace, template.spec.restart_policy) == ("default", "Always")
    assert template.spec.termination_grace_s == 30
    assert template.spec.containers[0].pull_policy == "Always"  # no tag
    assert template.spec.qos_class == "Guaranteed"
    assert [each.effect for each in template.spec.tolerations] == ["NoExecute"]


def test_null_is_as_if_it_were_absent() -> None:
    plain = pod(containers=[{"name": "c", "image": "proxy"}])
    empty = pod(
        tolerations=None,
        initContainers=None,
        hostUsers=None,
        containers=[{"name": "c", "image": "proxy", "args": None, "ports": None, "stdin": None}],
    )
    empty["metadata"] |= dict.fromkeys(("uid", "namespace", "labels", "creationTimestamp"))
    wanted, found = (parse_manifest(text(each), PATH) for each in (plain, empty))
    assert found.template.spec == wanted.template.spec
    assert found.pod_of("n-1", 0).uid == wanted.pod_of("n-1", 0).uid


def test_the_uid_depends_on_node_path_and_content() -> None:
    one = parse_manifest(text(pod()), PATH)
    moved = parse_manifest(text(pod()), "/m/b.yaml")
    changed = parse_manifest(text(pod(priority=1)), PATH)
    uids = {each.pod_of(node, 0).uid for each in (one, moved, changed) for node in ("n-1", "n-2")}
    assert len(uids) == 6
    assert one.pod_of("N-1", 0).name == "a-n-1"
    fixed = pod()
    fixed["metadata"] = {"name": "a", "uid": "my-own"}
    own = parse_manifest(text(fixed), PATH)
    assert own.pod_of("n-1", 0).uid == "my-own"


@pytest.mark.parametrize(
    ("spec", "resource"),
    [
        ("serviceAccountName: sa", "serviceaccounts"),
        ("imagePullSecrets: [{name: s}]", "secrets"),
        ("resourceClaims: [{name: r}]", "resourceclaims"),
        ("volumes: [{name: v, configMap: {name: c}}]", "configmaps"),
        ("volumes: [{name: v, persistentVolumeClaim: {}}]", "persistentvolumeclaims"),
        ("volumes: [{name: v, projected: {sources: [{secret: {name: s}}]}}]", "secrets"),
        ("containers: [{name: c, image: i, envFrom: [{configMapRef: {name: m}}]}]", "configmaps"),
    ],
)
def test_what_refers_to_api_objects_is_refused(spec: str, resource: str) -> None:
    with pytest.raises(ManifestError, match="static pods may not reference") as caught:
        parse_manifest(text(pod(**yaml.safe_load(spec))), PATH)
    assert resource in str(caught.value)


def test_a_file_holds_exactly_one_pod() -> None:
    both: dict[str, Any] = {"apiVersion": "v1", "kind": "PodList", "items": [pod("a"), pod("b")]}
    for data in (text(both), b"kind: ConfigMap", b"- a", b"{", b"kind: Pod"):
        with pytest.raises(ManifestError):
            parse_manifest(data, PATH)


def test_a_directory_is_read_again_when_it_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = environment(tmp_path, staticPodPath="./manifests")
    changes: list[Environment] = []
    source = StaticSource(env, changes.append)
    source.read_file()
    assert env.static == ()  # it was read: it does not exist
    directory = tmp_path / "manifests"
    directory.mkdir()
    (directory / "a.yaml").write_bytes(text(pod("a")))
    (directory / ".hidden.yaml").write_bytes(text(pod("hidden")))
    (directory / "inner").mkdir()
    (directory / "broken.yaml").write_text("kind: Pod")
    with caplog.at_level(logging.WARNING):
        source.read_file()
        source.read_file()
    assert names(env) == ["a"]
    assert len(changes) == 2
    [record] = caplog.records
    assert record.getMessage() == (
        f"could not process manifest file {directory / 'broken.yaml'}: "
        "invalid pod: name is needed for the pod"
    )
    (directory / "a.yaml").unlink()
    source.read_file()
    assert env.static == ()
    assert len(changes) == 3


def test_a_single_file_that_breaks_leaves_what_it_said(tmp_path: Path) -> None:
    """Until it has been read once, its source has not been seen."""
    env = environment(tmp_path, staticPodPath="./a.yaml")
    source = StaticSource(env, lambda _: None)
    file = tmp_path / "a.yaml"
    for content, found in ((b"{", None), (text(pod("a")), ["a"]), (b"kind: Pod", ["a"])):
        file.write_bytes(content)
        source.read_file()
        assert (env.static and names(env)) == found
    file.unlink()
    source.read_file()
    assert env.static == ()


def test_only_files_below_the_directory_of_the_profile_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where links lead; those that stay inside, as a mounted ConfigMap has them, are fine."""
    own, others = tmp_path / "own", tmp_path / "others"
    manifests = own / "manifests"
    for each in (manifests / "..data", others):
        each.mkdir(parents=True)
    (manifests / "..data" / "a.yaml").write_bytes(text(pod("a")))
    (manifests / "a.yaml").symlink_to(Path("..data") / "a.yaml")
    (others / "secret.yaml").write_bytes(text(pod("secret")))
    (manifests / "out.yaml").symlink_to(others / "secret.yaml")
    env = environment(own, staticPodPath="manifests")
    with caplog.at_level(logging.WARNING):
        StaticSource(env, lambda _: None).read_file()
    assert names(env) == ["a"]
    [record] = caplog.records
    assert "is a link that leads out of the profile's directory" in record.getMessage()
    # The directory itself is exchanged for a link while the run goes on.
    manifests.rename(own / "before")
    manifests.symlink_to(others)
    for path in ("manifests", "../others", str(others), ".", "manifests/../../others"):
        env = environment(own, staticPodPath=path)
        StaticSource(env, lambda _: None).read_file()
        assert env.static == (), path
    env = environment(staticPodPath="own/before")  # of a profile that has no file
    StaticSource(env, lambda _: None).read_file()
    assert env.static == ()


@pytest.mark.parametrize(
    "path", ["/etc/kubernetes/manifests", "..", "../x", ".", "link", "link/x", "inner/../.."]
)
def test_a_profile_that_names_files_of_others_is_refused(path: str, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "link").symlink_to("/etc")
    spec = {"kubeletConfiguration": {"staticPodPath": path}}
    (own / "p.yaml").write_text(yaml.safe_dump({**HEAD, "spec": spec}))
    with pytest.raises(UsageError, match="is not below the profile's directory"):
        load_source(str(own / "p.yaml"))


def test_no_text_of_a_manifest_stands_in_a_complaint() -> None:
    for content in (
        b"root:$6$SECRET:1:0\n\tdaemon: x",
        b"kind: SECRET",
        b"kind: Pod\nmetadata: SECRET\nspec: SECRET",
        b"kind: Pod\nmetadata: {name: a}\nspec: {containers: SECRET}",
        b"kind: Pod\nmetadata: {name: a}\nspec: {containers: [SECRET]}",
        b"kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a}], volumes: [SECRET]}",
        b"kind: Pod\nmetadata: {name: a}\nspec: {containers: [{resources: {limits: SECRET}}]}",
        b"kind: Pod\nmetadata: {name: [SECRET]}\nspec: {containers: [{name: a, image: {a: 1}}]}",
    ):
        with pytest.raises(ManifestError) as refused:
            parse_manifest(content, PATH)
        assert "SECRET" not in str(refused.value), content
