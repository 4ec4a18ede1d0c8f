"""Pods that a real kubelet never starts, and that it starts once what they lack is there."""

import pytest
from world.pod_world import model_of
from world.simulation import Simulation
from world.strategic_merge import Object

pytest_plugins = ("sim_encodings",)

CONFIG_ERROR = "CreateContainerConfigError"
PULLED = {"image": "busybox:1", "imagePullPolicy": "IfNotPresent"}
LONG = "a" * 50


def started(*, light: bool = False, **spec: object) -> Simulation:
    return Simulation(seed=1, light=light, model=model_of(**spec)).run_for(seconds=30)


def waiting(sim: Simulation, pod: str = "p", field: str = "containerStatuses") -> Object:
    found: Object = sim.status(pod)[field][0]["state"].get("waiting", {})
    return found


def handlers(*, users: bool = True, mounts: bool = True) -> Object:
    """Return a profile of nodes whose runtime says what it can do."""
    features = {"userNamespaces": users, "recursiveReadOnlyMounts": mounts}
    found = [{"name": "", "features": features}, {"name": "kata", "features": {}}]
    return {"template": {"status": {"runtimeHandlers": found}}}


def reader(path: str = "config.env", **ref: object) -> Object:
    """Return a container one of whose variables comes from a file of the volume `v`."""
    source = {"volumeName": "v", "path": path, "key": "NAME", **ref}
    return {
        "name": "c",
        **PULLED,
        "command": ["sh", "-c", "echo $NAME; sleep 1000"],
        "env": [{"name": "NAME", "valueFrom": {"fileKeyRef": source}}],
    }


def writer(script: str) -> Object:
    mount = {"name": "v", "mountPath": "/v"}
    return {"name": "w", **PULLED, "command": ["sh", "-c", script], "volumeMounts": [mount]}


EMPTY_DIR: list[Object] = [{"name": "v", "emptyDir": {}}]


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
@pytest.mark.parametrize(
    ("script", "ref", "error"),
    [
        ("echo \"NAME='web'\" > /v/config.env", {}, ""),
        ("true", {}, "couldn't parse env file"),
        ("true", {"optional": True}, "couldn't parse env file"),
        ("echo NAME=web > /v/config.env", {}, "couldn't parse env file"),
        ("echo \"OTHER='web'\" > /v/config.env", {"optional": True}, ""),
        (
            "echo \"OTHER='web'\" > /v/config.env",
            {},
            (
                'environment variable key "NAME" not found in file "/var/lib/kubelet/pods/{uid}'
                '/volumes/kubernetes.io~empty-dir/v/config.env"'
            ),
        ),
        ("mystery > /dev/null", {"volumeName": "u"}, "couldn't parse env file"),
    ],
)
def test_a_variable_of_a_file(script: str, ref: Object, error: str, *, light: bool) -> None:
    sim = started(light=light)
    volumes = [*EMPTY_DIR, {"name": "u", "emptyDir": {}}]
    other = {**reader(**ref), "volumeMounts": [{"name": "u", "mountPath": "/u"}]}
    sim.create_pod("p", initContainers=[writer(script)], containers=[other], volumes=volumes)
    sim.run_for(seconds=60)
    text = error.format(uid=sim.server.get("pods", "p", "default")["metadata"]["uid"])
    if not error:
        assert sim.phase("p") == "Running"
        return
    assert sim.phase("p") == "Pending"
    assert waiting(sim) == {"reason": CONFIG_ERROR, "message": text}
    if not light:
        assert f"Error: {text}" in sim.said("Failed")


@pytest.mark.parametrize(
    "spec",
    [
        {"kubeletVersion": "v1.34.0"},
        {"kubeletConfiguration": {"featureGates": {"EnvFiles": False}}},
    ],
    ids=["old", "gate"],
)
def test_a_kubelet_that_reads_no_files_starts_the_container(spec: Object) -> None:
    sim = started(**spec)
    sim.create_pod("p", initContainers=[writer("true")], containers=[reader()], volumes=EMPTY_DIR)
    sim.run_for(seconds=60)
    assert sim.phase("p") == "Running"


def test_a_file_of_a_program_that_is_not_known_may_be_there() -> None:
    sim = started()
    unknown = {**writer(""), "command": ["/fetch-settings"]}
    sim.create_pod("p", initContainers=[unknown], containers=[reader()], volumes=EMPTY_DIR)
    sim.create_pod("q", containers=[reader()], volumes=EMPTY_DIR)
    sim.run_for(seconds=60)
    assert sim.phase("p") == "Running"
    lacks = 'cannot find the volume "v" referenced by FileKeyRef'
    assert waiting(sim, "q") == {"reason": CONFIG_ERROR, "message": lacks}


@pytest.mark.parametrize(("name", "error"), [("AT_DIR", ""), ("DIR", "missing value for DIR")])
def test_a_path_may_be_named_by_all_that_an_object_has(name: str, error: str) -> None:
    sim = started()
    sim.server.create(("configmaps", "default", "paths"), {"data": {"DIR": "a"}})
    mounts = [{"name": "v", "mountPath": "/v", "subPathExpr": f"$({name})"}]
    env = [{"prefix": "AT_", "configMapRef": {"name": "paths"}}]
    container = {"name": "c", **PULLED, "envFrom": env, "volumeMounts": mounts}
    sim.create_pod("p", containers=[container], volumes=EMPTY_DIR)
    sim.run_for(seconds=20)
    assert waiting(sim) == ({"reason": CONFIG_ERROR, "message": error} if error else {})


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ({"configMapKeyRef": {"name": "cfg", "key": "text"}}, ""),
        ({"configMapKeyRef": {"name": "cfg", "key": "raw"}}, "couldn't find key raw in {}"),
        (
            {"resourceFieldRef": {"containerName": "x", "resource": "limits.cpu"}},
            "container x not found",
        ),
    ],
)
def test_a_variable_needs_text_or_a_container(source: Object, error: str) -> None:
    sim = started()
    data = {"data": {"text": "a"}, "binaryData": {"raw": "Yg=="}}
    sim.server.create(("configmaps", "default", "cfg"), data)
    env = [{"name": "A", "valueFrom": source}]
    sim.create_pod("p", containers=[{"name": "c", **PULLED, "env": env}])
    sim.run_for(seconds=20)
    text = error.format("ConfigMap default/cfg")
    assert waiting(sim) == ({"reason": CONFIG_ERROR, "message": text} if error else {})


@pytest.mark.parametrize(("length", "phase"), [(36, "Running"), (37, "Pending")])
def test_a_full_name_has_64_characters_at_most(length: int, phase: str) -> None:
    sim = started()
    name, domain = "a" * length, "s.default.svc.cluster.local"
    sim.create_pod("p", hostname=name, subdomain="s", setHostnameAsFQDN=True)
    sim.create_pod("short", hostname=LONG, subdomain="s")
    sim.create_pod("alone", hostname=LONG, setHostnameAsFQDN=True)
    sim.run_for(seconds=60)
    assert sim.phase("p") == phase
    assert sim.phase("short") == sim.phase("alone") == "Running"
    text = (
        "Failed to create pod sandbox: failed to construct FQDN from pod hostname and cluster "
        f"domain, FQDN {name}.{domain} is too long (64 characters is the max, "
        f"{length + 1 + len(domain)} characters requested)"
    )
    assert sim.said("FailedCreatePodSandBox").keys() == ({text} if phase == "Pending" else set())


HUGE = "hugePages storage requested, but there is no resource request for huge pages"


@pytest.mark.parametrize(
    ("medium", "asked", "error"),
    [
        ("HugePages", (), f"medium HugePages: {HUGE}"),
        ("HugePages", ("2Mi",), ""),
        ("Disk", (), 'unknown storage medium "Disk"'),
        (
            "HugePages-big",
            (),
            (
                "quantities must match the regular expression "
                "'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            ),
        ),
        ("HugePages-2Mi", ("2Mi", "1Gi"), ""),
        ("HugePages-1Gi", ("2Mi",), f"medium HugePages-1Gi: {HUGE}"),
        (
            "HugePages",
            ("2Mi", "1Gi"),
            "medium: HugePages can't be used if container requests multiple huge page sizes",
        ),
    ],
)
def test_an_empty_directory_of_huge_pages(medium: str, asked: tuple[str, ...], error: str) -> None:
    has = {f"hugepages-{each}": "2Gi" for each in ("2Mi", "1Gi")}
    sim = started(template={"status": {"capacity": {"cpu": "4", "memory": "8Gi", **has}}})
    amounts = {f"hugepages-{each}": "1Gi" for each in asked}
    container = writer("sleep 1000") | {"resources": {"requests": amounts, "limits": amounts}}
    volumes = [{"name": "v", "emptyDir": {"medium": medium}}]
    sim.create_pod("p", containers=[container], volumes=volumes)
    sim.run_for(seconds=60)
    assert sim.phase("p") == ("Pending" if error else "Running")
    text = f'MountVolume.SetUp failed for volume "v" : {error}'
    assert sim.said("FailedMount").keys() == ({text} if error else set())


@pytest.mark.parametrize(
    ("runtime_class", "users", "error"),
    [
        ("", True, ""),
        ("", False, "can't set `spec.hostUsers: false`, runtime does not support user namespaces"),
        (
            "vm",
            True,
            (
                'can\'t set `spec.hostUsers: false`, RuntimeClass handler "kata" does not '
                "support user namespaces"
            ),
        ),
        (
            "gone",
            True,
            (
                'can\'t set `spec.hostUsers: false`, RuntimeClass handler "gone" does not '
                'support user namespaces: the handler "gone" is not known'
            ),
        ),
    ],
)
def test_a_user_namespace(runtime_class: str, users: bool, error: str) -> None:  # noqa: FBT001
    sim = started(**handlers(users=users))
    sim.server.create(("runtimeclasses", "", "vm"), {"handler": "kata"})
    sim.server.create(("runtimeclasses", "", "gone"), {"handler": "gone"})
    sim.run_for(seconds=1)
    sim.create_pod("p", hostUsers=False, runtimeClassName=runtime_class)
    sim.create_pod("host", hostUsers=True)
    sim.run_for(seconds=60)
    assert sim.phase("host") == "Running"
    assert sim.phase("p") == ("Pending" if error else "Running")
    found = {f"Failed to create pod sandbox: {error}"} if error else set()
    assert sim.said("FailedCreatePodSandBox").keys() == found


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
@pytest.mark.parametrize(
    ("wanted", "has", "shown"),
    [
        ("Enabled", True, "Enabled"),
        ("IfPossible", True, "Enabled"),
        ("IfPossible", False, "Disabled"),
        ("Enabled", False, ""),
    ],
)
def test_a_recursive_read_only_mount(wanted: str, has: bool, shown: str, *, light: bool) -> None:  # noqa: FBT001
    sim = started(light=light, **handlers(mounts=has))
    mount = {"name": "v", "mountPath": "/v", "readOnly": True, "recursiveReadOnly": wanted}
    container = writer("sleep 1000") | {"volumeMounts": [mount]}
    sim.create_pod("p", containers=[container], volumes=EMPTY_DIR)
    sim.run_for(seconds=60)
    if shown:
        [found] = sim.status("p")["containerStatuses"][0]["volumeMounts"]
        assert found["recursiveReadOnly"] == shown
        assert sim.phase("p") == "Running"
        return
    text = (
        'failed to resolve recursive read-only mode: volume "v" requested recursive read-only '
        "mode, but it is not supported by the runtime"
    )
    assert waiting(sim) == {"reason": CONFIG_ERROR, "message": text}


@pytest.mark.parametrize("light", [False, True], ids=["kubelet", "light"])
def test_an_ephemeral_container_waits_for_its_target(*, light: bool) -> None:
    sim = started(light=light)
    slow = {"name": "i", **PULLED, "command": ["sleep", "60"]}
    main = {"name": "c", **PULLED, "command": ["sleep", "1000"]}
    sim.create_pod("p", initContainers=[slow], containers=[main])
    sim.run_for(seconds=10)
    debug = {"name": "d", **PULLED, "command": ["sleep", "1000"], "targetContainerName": "c"}
    sim.server.update("pods", "p", {"spec": {"ephemeralContainers": [debug]}}, "default")
    sim.run_for(seconds=25)  # the next sync shows why the first one failed
    text = "unable to find target container c"
    field = "ephemeralContainerStatuses"
    assert waiting(sim, field=field) == {"reason": CONFIG_ERROR, "message": text}
    if not light:
        assert f"Error: {text}" in sim.said("Failed")
    sim.run_for(seconds=120)
    assert "running" in sim.status("p")[field][0]["state"]


@pytest.mark.parametrize("kind", ["gitRepo", "flexVolume", "rbd", "gcePersistentDisk"])
def test_a_volume_whose_plug_in_kubelets_have_no_more(kind: str) -> None:
    """Source: desired_state_of_world.go, AddPodToVolume; git_repo.go, SetUpAt."""
    sim = started()
    made: Object = {"name": "c", **PULLED, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    sim.create_pod("p", containers=[made], volumes=[{"name": "v", kind: {}}])
    sim.run_for(seconds=60)
    assert sim.phase("p") == "Pending"
    if kind == "gcePersistentDisk":
        assert not sim.said("FailedMount")
        return
    [text] = sim.said("FailedMount")
    assert text == (
        'MountVolume.SetUp failed for volume "v" : git-repo volume plugin has been disabled; if '
        "necessary, it may be re-enabled by enabling the feature-gate `GitRepoVolumeDriver`"
        if kind == "gitRepo"
        else "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], "
        "failed to process volumes=[v]: failed to get Plugin from volumeSpec for volume "
        '"v" err=no volume plugin matched'
    )
