"""Secrets that kubelets read for CSI drivers, and volumes that a plug-in does not take as asked.

Source: pkg/volume/csi/csi_attacher.go, csi_mounter.go, csi_block.go, expander.go;
pkg/volume/util/operationexecutor/operation_generator.go.
"""

import itertools

import pytest
from test_csi_publishing import create, driver
from test_volume_expansion import RESYNC_S, grow, model_with, run_pod
from test_volume_timing import ATTACHMENT, DATA, DRIVER, attach_in_turn, claim, reads, started
from world.api_server import Answer, refusal
from world.simulation import Simulation
from world.strategic_merge import Object

pytest_plugins = ("sim_encodings",)

SPACE = "vault"
CSI, FAILED = "kubernetes.io/csi:", 'failed for volume "pv-1" :'
UNSET = "blockMapper.publishVolumeForBlock failed to get"
UNFOUND = f"{CSI} failed to find the secret %s in the namespace %s with error: "
RUN_S, BACK_OFF_S = 16, 40


def refer(sim: Simulation, **fields: object) -> None:
    """Change the spec of the volume `pv-1`."""
    sim.server.update("persistentvolumes", "pv-1", {"spec": fields})


def with_secrets(sim: Simulation, *calls: str) -> None:
    """Let the driver of the volume have a Secret with each of these calls."""
    refs = {f"node{each}SecretRef": {"namespace": SPACE, "name": each.lower()} for each in calls}
    refer(sim, csi=refs)


def store(sim: Simulation, name: str, namespace: str = SPACE) -> None:
    sim.server.create(("secrets", namespace, name), {"data": {"key": "YQ=="}})


def read(sim: Simulation, since_s: float = 0) -> list[tuple[str, int]]:
    """Return which Secrets were read, and the answers."""
    found = sim.calls(verb="GET", path="/secrets/", since_s=since_s)
    return [(each.path.partition("/namespaces/")[2], each.code) for each in found]


def run(sim: Simulation, volume: Object = DATA, field: str = "volumeMounts") -> None:
    create(sim, volume, field)
    attach_in_turn(sim, RUN_S - 11)


def said(sim: Simulation, *reasons: str) -> set[str]:
    wanted = reasons or ("FailedMount", "FailedMapVolume")
    return {each["message"] for each in sim.events() if each["reason"] in wanted}


@pytest.mark.parametrize("attached", [True, False], ids=["attached", "not attached"])
def test_secrets_are_read_for_each_call_of_a_driver(*, attached: bool) -> None:
    sim = started()
    driver(sim, attachRequired=attached)
    claim(sim.server)
    with_secrets(sim, "Stage", "Publish")
    store(sim, "stage")
    store(sim, "publish")
    run(sim)
    assert sim.phase("db") == "Running"
    assert read(sim) == [(f"{SPACE}/secrets/stage", 200), (f"{SPACE}/secrets/publish", 200)]
    asked = [each.path.split("/")[-2] for each in sim.calls(verb="GET") if "pods" not in each.path]
    attachments = [each for each in asked if each in {"volumeattachments", "secrets"}]
    order = ["volumeattachments", "volumeattachments", "secrets", "volumeattachments", "secrets"]
    assert attachments == (order if attached else ["secrets", "secrets"])


@pytest.mark.parametrize("attached", [True, False], ids=["attached", "not attached"])
@pytest.mark.parametrize(
    ("field", "stage", "publish"),
    [
        (
            "volumeMounts",
            f"MountVolume.MountDevice {FAILED} fetching NodeStageSecretRef vault/stage failed: ",
            f"MountVolume.SetUp {FAILED} fetching NodePublishSecretRef vault/publish failed: ",
        ),
        (
            "volumeDevices",
            f"MapVolume.SetUpDevice {FAILED} {CSI} failed to get NodeStageSecretRef vault/stage: ",
            f"MapVolume.MapPodDevice {FAILED} {CSI} {UNSET} NodePublishSecretRef vault/publish: ",
        ),
    ],
    ids=["mounted", "mapped"],
)
def test_a_secret_that_is_missing_fails_its_call_until_it_is_there(
    field: str, stage: str, publish: str, *, attached: bool
) -> None:
    sim = started()
    driver(sim, attachRequired=attached)
    claim(sim.server)
    with_secrets(sim, "Stage", "Publish")
    if field == "volumeDevices":
        refer(sim, volumeMode="Block")
    run(sim, field=field)
    assert sim.phase("db") == "Pending"
    text = UNFOUND % ("stage", SPACE)
    assert [each.startswith(stage + text) for each in said(sim)] == [True]
    assert {each for each, _ in read(sim)} == {f"{SPACE}/secrets/stage"}
    store(sim, "stage")
    sim.run_for(seconds=BACK_OFF_S)
    text = UNFOUND % ("publish", SPACE)
    assert sum(each.startswith(publish + text) for each in said(sim)) == 1
    found = read(sim)
    staged = found.index((f"{SPACE}/secrets/stage", 200))
    assert {each for each, _ in found[staged + 1 :]} == {f"{SPACE}/secrets/publish"}  # once staged
    store(sim, "publish")
    sim.run_for(seconds=2 * BACK_OFF_S)
    assert sim.phase("db") == "Running"


def test_a_volume_that_a_second_pod_mounts_is_not_staged_again() -> None:
    sim = started()
    claim(sim.server)
    with_secrets(sim, "Stage", "Publish")
    store(sim, "stage")
    store(sim, "publish")
    run(sim)
    since_s = sim.now_s
    sim.create_pod("second", volumes=[DATA])
    sim.run_for(seconds=RUN_S)
    assert sim.phase("second") == "Running"
    assert read(sim, since_s) == [(f"{SPACE}/secrets/publish", 200)]
    for name in ("db", "second"):
        sim.server.delete_pod(name, grace_s=1)
    sim.run_for(seconds=60)
    since_s = sim.now_s
    run(sim)
    assert [each for each, _ in read(sim, since_s)] == [
        f"{SPACE}/secrets/stage",
        f"{SPACE}/secrets/publish",
    ]


def test_an_inline_volume_has_a_secret_of_its_pod_s_namespace() -> None:
    sim = started()
    driver(sim)
    inline: Object = {"driver": DRIVER, "nodePublishSecretRef": {"name": "own"}}
    create(sim, {"name": "inline", "csi": inline})
    sim.run_for(seconds=RUN_S)
    assert sim.phase("db") == "Pending"
    [text] = sim.said("FailedMount")
    assert text.startswith(
        'MountVolume.SetUp failed for volume "inline" : '
        f"fetching NodePublishSecretRef default/own failed: {UNFOUND % ('own', 'default')}"
    )
    store(sim, "own", "default")
    sim.run_for(seconds=BACK_OFF_S)
    assert sim.phase("db") == "Running"
    assert read(sim)[-1] == ("default/secrets/own", 200)
    assert [code for _, code in read(sim)].count(200) == 1
    [watch] = sim.calls(verb="WATCH", path="/secrets")  # as of each Secret that a pod refers to
    assert "metadata.name%3Down" in watch.path


def test_a_volume_that_grows_needs_its_secret() -> None:
    sim = model_with(nodeExpansion=True)
    with_secrets(sim, "Expand")
    run_pod(sim)
    assert not read(sim)
    grow(sim)
    sim.run_for(seconds=RESYNC_S)
    [text] = said(sim, "VolumeResizeFailed")
    assert text.startswith(
        'NodeExpandVolume.NodeExpandVolume failed for volume "pv-1" : expander.NodeExpand failed '
        f"to get NodeExpandSecretRef vault/expand: {UNFOUND % ('expand', SPACE)}"
    )
    store(sim, "expand")
    sim.run_for(seconds=300)
    assert read(sim)[-1] == (f"{SPACE}/secrets/expand", 200)
    status = sim.server.get("persistentvolumeclaims", "data", "default")["status"]
    assert status["capacity"] == {"storage": "2Gi"}


@pytest.mark.parametrize("attached", [True, False], ids=["attached", "not attached"])
def test_one_pod_alone_has_a_volume_of_that_mode(*, attached: bool) -> None:
    sim = started()
    driver(sim, attachRequired=attached)
    claim(sim.server)
    refer(sim, accessModes=["ReadWriteOncePod"])
    run(sim)
    since_s = sim.now_s
    sim.create_pod("second", volumes=[DATA])
    sim.run_for(seconds=RUN_S)
    assert (sim.phase("db"), sim.phase("second")) == ("Running", "Pending")
    assert len(reads(sim, since_s)) == 2  # that it is attached is known
    text = f"MountVolume.SetUp {FAILED} volume uses the ReadWriteOncePod access mode"
    assert list(sim.said("FailedMount")) == [f"{text} and is already in use by another pod"]
    sim.server.delete_pod("db", grace_s=1)
    # The next try comes after 32 s by itself: that the volume is unmounted resets the back-off.
    sim.run_for(seconds=6)
    assert sim.phase("second") == "Running"


def in_tree(sim: Simulation, plugin: str, **spec: object) -> None:
    """Make the volume one of a plug-in of the kubelet itself."""
    claim(sim.server)
    refer(sim, csi=None, **{plugin: {"path": "/data"}}, **spec)


def test_a_host_path_is_no_block_device_and_nothing_says_so() -> None:
    sim = started()
    in_tree(sim, "hostPath", volumeMode="Block")
    create(sim, DATA, "volumeDevices")
    sim.run_for(seconds=400)
    assert sim.phase("db") == "Pending"
    about = sim.events(about="db")
    assert about == []


@pytest.mark.parametrize("plugin", ["kubernetes.io~local-volume", "kubernetes.io~csi"])
def test_a_raw_block_volume_is_mapped_and_says_so(plugin: str) -> None:
    sim = started()
    home, shared = "/var/lib/kubelet", f"{plugin}/volumeDevices/pv-1"
    if "csi" in plugin:
        shared = "kubernetes.io/csi/volumeDevices/pv-1/dev"
        claim(sim.server)
        refer(sim, volumeMode="Block")
    else:
        in_tree(sim, "local", volumeMode="Block")
    run(sim, field="volumeDevices")
    assert sim.phase("db") == "Running"
    uid = sim.server.get("pods", "db", "default")["metadata"]["uid"]
    text = 'MapVolume.MapPodDevice succeeded for volume "pv-1" '
    assert [each["message"] for each in sim.events("SuccessfulMountVolume")] == [
        f'{text}globalMapPath "{home}/plugins/{shared}"',
        f'{text}volumeMapPath "{home}/pods/{uid}/volumeDevices/{plugin}"',
    ]


@pytest.mark.parametrize(
    ("place", "step", "call"),
    [(2, "SetUpDevice", "SetupDevice"), (3, "MapPodDevice", "MapPodDevice")],
)
def test_a_map_that_cannot_read_its_attachment_names_the_call(
    place: int, step: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim = started()
    claim(sim.server)
    refer(sim, volumeMode="Block")
    answer, places = sim.server.handle, itertools.count(1)

    def handle(method: str, path: str, body: bytes) -> Answer:
        if "/volumeattachments/" in path and next(places) == place:
            return sim.server.encoded(refusal(403, "Forbidden", "not now"))
        return answer(method, path, body)

    monkeypatch.setattr(sim.server, "handle", handle)
    run(sim, field="volumeDevices")
    what = f"blockMapper.{call} failed to get volume attachment [id={ATTACHMENT}]: not now"
    assert said(sim, "FailedMapVolume") == {f"MapVolume.{step} {FAILED} {CSI} {what}"}
    assert sim.phase("db") == "Running"


@pytest.mark.parametrize("noted", [True, False], ids=["annotation", "field"])
@pytest.mark.parametrize(("plugin", "is_taken"), [("hostPath", False), ("nfs", True)])
def test_mount_options_are_for_plugins_that_know_them(
    plugin: str, *, is_taken: bool, noted: bool
) -> None:
    sim = started()
    in_tree(sim, plugin, **({} if noted else {"mountOptions": ["noatime"]}))
    if noted:
        notes = {"annotations": {"volume.beta.kubernetes.io/mount-options": "noatime"}}
        sim.server.update("persistentvolumes", "pv-1", {"metadata": notes})
    create(sim, DATA)
    sim.run_for(seconds=RUN_S)
    assert sim.phase("db") == ("Running" if is_taken else "Pending")
    text = f"check {FAILED} mount options are not supported for this volume type"
    assert said(sim) == (set() if is_taken else {f"MountVolume.MountOptionSupport {text}"})
