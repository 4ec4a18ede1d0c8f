"""Claims from bind to unmount in virtual time: what is read, what is waited for, what is said."""

import pytest
from world.api_server import SimApiServer
from world.pod_world import model_of
from world.sim_faults import ApiServerAnswers
from world.simulation import Simulation
from world.strategic_merge import Object

from fleet.k8s.effects import NodeId
from fleet.k8s.volumes import attachment_name

pytest_plugins = ("sim_encodings",)

DRIVER = "csi.example.com"
UNIQUE = f"kubernetes.io/csi/{DRIVER}^vol-1"
ATTACHMENT = attachment_name("vol-1", DRIVER, "n-0")
DATA = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
MODEL = model_of(csiDrivers=[{"name": DRIVER, "allocatableCount": 8}])


def claim(server: SimApiServer, phase: str = "Bound", source: Object | None = None) -> None:
    """Store the claim `data` and its volume `pv-1`."""
    spec = {"volumeName": "pv-1"} if phase == "Bound" else {}
    obj = {"spec": spec, "status": {"phase": phase}}
    stored = server.create(("persistentvolumeclaims", "default", "data"), obj)
    assert stored is not None
    uid = stored.obj["metadata"]["uid"]
    csi = {"driver": DRIVER, "volumeHandle": "vol-1"}
    volume = {"spec": {**(source or {"csi": csi}), "claimRef": {"uid": uid}}}
    server.create(("persistentvolumes", "", "pv-1"), volume)


def attach(sim: Simulation) -> None:
    """Do what attach-detach controller and external attacher do."""
    attachment = {"spec": {"attacher": DRIVER}, "status": {"attached": True}}
    sim.server.create(("volumeattachments", "", ATTACHMENT), attachment)
    volumes = [{"name": UNIQUE, "devicePath": ""}]
    sim.server.update("nodes", "n-0", {"status": {"volumesAttached": volumes}})


def attach_in_turn(sim: Simulation, seconds: float) -> None:
    """Attach the volume once the kubelet has read the claim of a new pod; go on for a while."""
    sim.run_for(seconds=11)
    attach(sim)
    sim.run_for(seconds=seconds)


def mapping(sim: Simulation) -> Object:
    """Make the volume a block device; return the members of a pod that maps it."""
    sim.server.update("persistentvolumes", "pv-1", {"spec": {"volumeMode": "Block"}})
    device = {"name": "data", "devicePath": "/dev/xvda"}
    return {"containers": [{"name": "c", "image": "nginx:1", "volumeDevices": [device]}]}


def started() -> Simulation:
    return Simulation(model=MODEL).run_for(seconds=60)


def reads(sim: Simulation, since_s: float) -> list[str]:
    """Return what was read for volumes, in order."""
    found = []
    for each in sim.calls(verb="GET", since_s=since_s):
        resource = each.path.split("/")[-2]
        if resource.startswith(("persistent", "volumeatt", "nodes")):
            found.append(resource)
    return found


@pytest.mark.parametrize(
    ("plugin", "member", "volume", "unique"),
    [
        ("awsElasticBlockStore", "volumeID", "aws://a/vol-1", "ebs.csi.aws.com^vol-1"),
        ("azureDisk", "diskURI", "/disks/d", "disk.csi.azure.com^/disks/d"),
        ("cinder", "volumeID", "v", "cinder.csi.openstack.org^v"),
        (
            *("gcePersistentDisk", "pdName", "d"),
            "pd.csi.storage.gke.io^projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
        ),
        ("portworxVolume", "volumeID", "v", "pxd.portworx.com^v"),
        ("vsphereVolume", "volumePath", "[d] v.vmdk", "csi.vsphere.vmware.com^[d] v.vmdk"),
    ],
)
def test_the_volume_of_a_plugin_that_is_gone_is_a_drivers(
    plugin: str, member: str, volume: str, unique: str
) -> None:
    sim = started()
    claim(sim.server, source={plugin: {member: volume}})
    sim.create_pod("db", volumes=[DATA])
    sim.run_for(seconds=11)
    status = sim.server.get("nodes", "n-0")["status"]
    assert status["volumesInUse"] == [f"kubernetes.io/csi/{unique}"]
    assert sim.phase("db") == "Pending"


def test_a_claim_is_reported_attached_and_mounted() -> None:
    sim = started()
    claim(sim.server)
    since_s = sim.now_s
    sim.create_pod("db", volumes=[DATA])
    sim.run_for(seconds=11)
    status = sim.server.get("nodes", "n-0")["status"]
    assert status["volumesInUse"] == [UNIQUE]  # at the tick after the claim was read
    assert reads(sim, since_s) == ["persistentvolumeclaims", "persistentvolumes"]
    assert sim.phase("db") == "Pending"
    attach(sim)
    sim.run_for(seconds=3)
    assert sim.phase("db") == "Running"
    claims = "persistentvolumeclaims"
    mounted = [*["volumeattachments"] * 3, claims]  # the last: whether it has grown meanwhile
    synced = [claims, "persistentvolumes"]  # by the sync that finds the container running
    assert reads(sim, since_s)[2:] == [claims, "nodes", *mounted, *synced]
    since_s = sim.now_s
    sim.reactor.restart([NodeId(0)])
    sim.run_for(seconds=20)
    found = reads(sim, since_s)
    assert found[found.index(claims) :] == [*synced, *mounted]  # that it is attached is known
    assert sim.said("FailedMount") == {}


def test_claims_of_a_running_pod_are_read_again_at_each_resync() -> None:
    sim = started()
    claim(sim.server)
    sim.create_pod("db", volumes=[DATA])
    attach_in_turn(sim, 5)
    since_s = sim.now_s
    sim.run_for(seconds=900)
    found = reads(sim, since_s)
    assert 10 <= found.count("persistentvolumeclaims") <= 15  # each 60 to 90 s
    assert found.count("persistentvolumes") == found.count("persistentvolumeclaims")
    assert "nodes" not in found


@pytest.mark.parametrize(
    ("phase", "error"),
    [
        ("Pending", "PVC is not bound"),
        ("", 'failed to fetch PVC from API server: persistentvolumeclaims "data" not found'),
        ("Bound", 'failed to fetch PV pv-1 from API server: persistentvolumes "pv-1" not found'),
    ],
)
def test_a_claim_that_is_no_good_fails_the_sync_until_it_is(phase: str, error: str) -> None:
    sim = started()
    if phase:
        claim(sim.server, phase)
    if phase == "Bound":
        sim.server.remove(("persistentvolumes", "", "pv-1"))
    sim.create_pod("db", volumes=[DATA])
    sim.run_for(seconds=2)
    text = (
        "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], "
        f"failed to process volumes=[data]: error processing PVC default/data: {error}"
    )
    assert sim.said("FailedMount") == {text: 1}
    sim.run_for(seconds=16)  # 10 s x U[1, 1.5], at the next second
    assert sim.said("FailedMount") == {text: 2}
    if phase:
        sim.server.remove(("persistentvolumeclaims", "default", "data"))
    if phase == "Pending":
        sim.server.remove(("persistentvolumes", "", "pv-1"))
    claim(sim.server)
    sim.run_for(seconds=27)
    attach(sim)
    sim.run_for(seconds=3)
    assert sim.phase("db") == "Running"


def test_a_wait_for_attach_times_out_without_an_event_and_goes_on() -> None:
    sim = started()
    claim(sim.server)
    since_s = sim.now_s
    sim.create_pod("db", volumes=[DATA])
    sim.run_for(seconds=150)
    assert sim.said("FailedMount") == {}
    assert reads(sim, since_s).count("persistentvolumeclaims") == 2  # one for each sync
    attach(sim)
    sim.run_for(seconds=20)
    assert sim.phase("db") == "Running"


@pytest.mark.parametrize(
    ("block", "call", "error", "attachments"),
    [
        (False, "MountVolume.MountDevice", "MountDevice failed to create newCsiDriverClient", 1),
        (True, "MapVolume.SetUpDevice", "SetUpDevice failed to get CSI client", 2),
    ],
)
def test_a_driver_that_is_not_on_the_node_fails_to_mount(
    call: str, error: str, attachments: int, *, block: bool
) -> None:
    sim = Simulation().run_for(seconds=60)
    claim(sim.server)
    since_s = sim.now_s
    sim.create_pod("db", volumes=[DATA], **(mapping(sim) if block else {}))
    attach_in_turn(sim, 4)
    [(text, count)] = sim.said("FailedMapVolume" if block else "FailedMount").items()
    assert text == (
        f'{call} failed for volume "pv-1" : kubernetes.io/csi: '
        f"{'blockMapper' if block else 'attacher'}.{error}: driver name csi.example.com not found "
        "in the list of registered CSI drivers"
    )
    assert reads(sim, since_s).count("volumeattachments") == count * attachments


def test_what_mounting_costs_and_refuses_is_declared_by_the_pod() -> None:
    sim = started()
    claim(sim.server)
    notes = {"fleet.emulator/mount-delay": "30s"}
    sim.create_pod("slow", volumes=[DATA], annotations=notes)
    attach_in_turn(sim, 29)
    assert sim.phase("slow") == "Pending"
    sim.run_for(seconds=4)
    assert sim.phase("slow") == "Running"
    notes = {"fleet.emulator/mount-error": "no such device"}
    sim.create_pod("bad", volumes=[DATA], annotations=notes)
    sim.run_for(seconds=5)
    error = "rpc error: code = Internal desc = no such device"
    assert list(sim.said("FailedMount")) == [
        f'MountVolume.SetUp failed for volume "pv-1" : {error}'
    ]
    assert sim.phase("bad") == "Pending"


def test_a_pod_goes_on_with_a_volume_that_others_write_to_be_in_use() -> None:
    """Source: kubelet_node_status.go, markVolumesFromNode: a tick needs no patch for that."""
    sim = started()
    claim(sim.server)
    sim.create_pod("db", volumes=[DATA])
    sim.run_for(seconds=0.3)
    sim.server.update("nodes", "n-0", {"status": {"volumesInUse": [UNIQUE]}})
    attach_in_turn(sim, 3)
    assert sim.phase("db") == "Running"


def test_a_volume_stays_in_use_until_its_last_pod_is_gone() -> None:
    sim = started()
    claim(sim.server)
    for name in ("one", "two"):
        sim.create_pod(name, volumes=[DATA])
    attach_in_turn(sim, 5)
    sim.server.delete_pod("one", grace_s=1)
    sim.run_for(seconds=10)
    sim.server.update("nodes", "n-0", {"status": {"volumesInUse": None}})
    sim.run_for(seconds=11)
    assert sim.server.get("nodes", "n-0")["status"]["volumesInUse"] == [UNIQUE]
    sim.server.delete_pod("two", grace_s=1)
    sim.run_for(seconds=30)
    assert not sim.server.get("nodes", "n-0")["status"].get("volumesInUse")


def test_volumes_of_pods_stay_in_use_while_a_kubelet_restarts() -> None:
    """Its Node is read for them until that succeeds; no pod waits for an attachment again."""
    sim = started()
    claim(sim.server)
    sim.create_pod("db", volumes=[DATA])
    attach_in_turn(sim, 5)
    since_s = sim.now_s
    sim.reactor.restart([NodeId(0)])
    sim.inject(ApiServerAnswers(500), seconds=1.5)
    sim.run_for(seconds=1.5)
    assert reads(sim, since_s).count("nodes") > 10
    while sim.kubelet().pods is None:
        sim.run_for(seconds=0.02)
    since_s = sim.now_s
    sim.reactor.restart([NodeId(0)])  # before the one that has the pods has read their claims
    for _ in range(300):
        sim.run_for(seconds=0.1)
        assert sim.server.get("nodes", "n-0")["status"]["volumesInUse"] == [UNIQUE]
    found = [each.removeprefix("persistent") for each in reads(sim, since_s) if each != "nodes"]
    assert found == ["volumeclaims", "volumes", *["volumeattachments"] * 3, "volumeclaims"]
    sim.reactor.restart([NodeId(0)])
    sim.server.delete_pod("db", grace_s=0)
    sim.run_for(seconds=30)
    assert not sim.server.get("nodes", "n-0")["status"].get("volumesInUse")
    assert sim.kubelet().pods is None


@pytest.mark.parametrize(("block", "call", "told"), [(False, "Mount", 3), (True, "Map", 25)])
def test_a_volume_that_does_not_belong_here_is_refused(
    call: str, told: int, *, block: bool
) -> None:
    sim = started()
    claim(sim.server)
    expression = {"key": "disk", "operator": "In", "values": ["fast"]}
    terms = [{"matchExpressions": [expression]}]
    affinity = {"required": {"nodeSelectorTerms": terms}}
    sim.server.update("persistentvolumes", "pv-1", {"spec": {"nodeAffinity": affinity}})
    sim.create_pod("db", volumes=[DATA], **(mapping(sim) if block else {}))
    attach_in_turn(sim, 3)
    text = f"{call}Volume.NodeAffinity check failed"
    text = f'{text} for volume "pv-1" : no matching NodeSelectorTerms'
    assert sim.said("FailedMount") == {text: told}  # a map has no back-off, but Events a limit
    sim.server.update("nodes", "n-0", {"metadata": {"labels": {"disk": "fast"}}})
    sim.run_for(seconds=120)
    assert sim.phase("db") == "Running"


@pytest.mark.parametrize(
    ("label", "shown", "fits"),
    [
        ("n-0", "n-0", True),  # as the kubelet set it: no copy of it is kept
        ("n-1", "n-0", False),
        ("n-0", "other", False),  # as somebody changed it
        ("other", "other", True),
        ("n-0", None, False),  # as somebody removed it
        (None, None, True),
    ],
)
def test_a_local_volume_asks_for_the_hostname_that_the_node_shows(
    label: str | None, shown: str | None, *, fits: bool
) -> None:
    """A volume that is not attached is checked with what is kept of the labels."""
    hostname = "kubernetes.io/hostname"
    sim = started()
    sim.server.update("nodes", "n-0", {"metadata": {"labels": {hostname: shown}}})
    labels = sim.server.get("nodes", "n-0")["metadata"]["labels"]
    assert labels.get(hostname) == shown
    claim(sim.server)
    expression = {"key": hostname, "operator": "In", "values": [label]}
    if label is None:
        expression = {"key": hostname, "operator": "DoesNotExist"}
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    change = {"csi": None, "local": {"path": "/mnt"}, "nodeAffinity": affinity}
    sim.server.update("persistentvolumes", "pv-1", {"spec": change})
    sim.create_pod("db", volumes=[DATA])
    sim.run_for(seconds=30)
    assert (sim.phase("db") == "Running") is fits
    refused = [each for each in sim.said("FailedMount") if "NodeAffinity check failed" in each]
    assert len(refused) == (not fits)


def test_a_config_map_that_goes_is_missed_at_the_next_resync() -> None:
    sim = started()
    sim.server.create(("configmaps", "default", "cfg"), {"data": {"a": "1"}})
    sim.create_pod("web", volumes=[{"name": "cfg", "configMap": {"name": "cfg"}}])
    sim.run_for(seconds=5)
    assert sim.phase("web") == "Running"
    sim.server.remove(("configmaps", "default", "cfg"))
    sim.run_for(seconds=100)
    text = 'MountVolume.SetUp failed for volume "cfg" : configmap "cfg" not found'
    assert list(sim.said("FailedMount")) == [text]
    sim.server.create(("configmaps", "default", "cfg"), {"data": {"a": "1"}})
    sim.run_for(seconds=130)
    count = sim.said("FailedMount")[text]
    sim.run_for(seconds=300)
    assert sim.said("FailedMount")[text] == count
    assert sim.phase("web") == "Running"


def test_an_immutable_object_is_watched_until_it_was_read() -> None:
    sim = started()
    sim.server.create(("configmaps", "default", "cfg"), {"immutable": True})
    watches = sim.server.open_watches
    sim.create_pod("web", volumes=[{"name": "cfg", "configMap": {"name": "cfg"}}])
    sim.run_for(seconds=5)
    assert sim.phase("web") == "Running"
    assert sim.server.open_watches == watches + 1  # kube-root-ca.crt
    sim.server.delete_pod("web", grace_s=1)
    sim.run_for(seconds=20)
    assert sim.server.open_watches == watches


def test_a_watch_for_environments_alone_is_stopped_when_idle() -> None:
    sim = started()
    sim.server.create(("secrets", "default", "s"), {"data": {"a": "YQ=="}})
    before = sim.server.open_watches + 1  # kube-root-ca.crt, which a volume shows
    source = {"secretKeyRef": {"name": "s", "key": "a"}}
    mount = {"name": "kube-api-access-9zkmg", "mountPath": "/var/run"}
    container: dict[str, object] = {"name": "c", "image": "nginx:1", "volumeMounts": [mount]}
    container["env"] = [{"name": "A", "valueFrom": source}]
    sim.create_pod("web", containers=[container])
    sim.run_for(seconds=5)
    assert sim.phase("web") == "Running"
    assert sim.server.open_watches == before + 1
    sim.run_for(seconds=300)
    assert sim.server.open_watches == before + 1  # not idle for 5 minutes at a full minute
    sim.run_for(seconds=60)
    assert sim.server.open_watches == before
    again = {**container, "image": "nginx:2"}
    sim.create_pod("next", containers=[again])
    sim.run_for(seconds=5)
    assert sim.phase("next") == "Running"
    assert sim.server.open_watches == before + 1
    for name in ("web", "next"):
        sim.server.delete_pod(name, grace_s=1)
    sim.run_for(seconds=20)
    assert sim.server.open_watches == before - 1


def test_drivers_are_published_like_plug_ins() -> None:
    sim = started()
    driver = {"name": DRIVER, "nodeID": "n-0", "allocatable": {"count": 8}}
    [found] = sim.server.get("csinodes", "n-0")["spec"]["drivers"]
    assert not found.pop("topologyKeys", None)  # null, of which protobuf knows nothing
    assert found == driver
    notes = sim.server.get("nodes", "n-0")["metadata"]["annotations"]
    assert notes["csi.volume.kubernetes.io/nodeid"] == '{"csi.example.com":"n-0"}'


@pytest.mark.parametrize("keys", [(), ("zone.example.com",)])
def test_drivers_that_are_published_are_not_published_again(keys: tuple[str, ...]) -> None:
    """Source: tryUpdateNode, updateTopologyLabels, installDriverToCSINode of nodeinfomanager.go."""
    model = model_of(csiDrivers=[{"name": DRIVER, "topologyKeys": keys}])
    sim = Simulation(model=model).run_for(seconds=60)
    since_s = sim.now_s
    sim.reactor.restart([NodeId(0)])
    sim.run_for(seconds=20)
    asked = [
        (each.verb, each.path.split("?")[0].rpartition("/apis/storage.k8s.io/v1")[2])
        for each in sim.calls(path="nodes/n-0", since_s=since_s)
    ]
    registers = len(asked) - 1 - asked[::-1].index(("GET", "/csinodes/n-0"))
    assert asked[registers - 1 - len(keys)] == ("GET", "/api/v1/nodes/n-0")
    patches = [("PATCH", "/api/v1/nodes/n-0/status")] * len(keys)  # of a driver with topology: {}
    assert asked[registers - len(keys) : registers] == patches
    assert ("PUT", "/csinodes/n-0") not in asked


def test_each_sync_of_a_pod_has_its_claims_read_again() -> None:
    """Source: WaitForAttachAndMount, ReprocessPod."""
    sim = started()
    sim.server.create(("csidrivers", "", DRIVER), {"spec": {"attachRequired": False}})
    sim.run_for(seconds=1)
    claim(sim.server)
    sim.create_pod("db", volumes=[DATA])
    sim.run_for(seconds=10)
    for _ in range(3):
        since_s = sim.now_s
        note = {"metadata": {"annotations": {"at": str(since_s)}}}
        sim.server.update("pods", "db", note, "default")
        sim.run_for(seconds=2)
        assert reads(sim, since_s) == ["persistentvolumeclaims", "persistentvolumes"]


def test_a_registration_that_is_refused_is_tried_again() -> None:
    sim = Simulation(model=MODEL)
    while sim.server.find("csinodes", "n-0") is None:
        sim.run_for(seconds=0.1)
    sim.inject(ApiServerAnswers(500), seconds=5)
    sim.run_for(seconds=5)
    refused = sim.calls(verb="GET", path="/api/v1/nodes/n-0", code=500)
    assert len(refused) >= 6  # 10, 50, 250 ms, then at the next second
    assert sim.server.get("csinodes", "n-0")["spec"].get("drivers") is None
    sim.run_for(seconds=15)
    [driver] = sim.server.get("csinodes", "n-0")["spec"]["drivers"]
    assert driver["name"] == DRIVER
    assert sim.condition("n-0") == "True"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (None, "(no CSIDriver object)"),
        ({"volumeLifecycleModes": ["Persistent"]}, '(only supports ["Persistent"])'),
        ({"volumeLifecycleModes": ["Persistent", "Ephemeral"]}, ""),
    ],
)
def test_an_inline_volume_needs_a_driver_that_takes_it(
    spec: dict[str, object] | None, problem: str
) -> None:
    sim = started()
    if spec is not None:
        sim.server.create(("csidrivers", "", DRIVER), {"spec": spec})
    sim.run_for(seconds=1)
    sim.create_pod("web", volumes=[{"name": "inline", "csi": {"driver": DRIVER}}])
    sim.run_for(seconds=3)
    failed = (
        'MountVolume.SetUp failed for volume "inline" : kubernetes.io/csi: mounter.SetupAt failed '
        f'to check volume lifecycle mode: volume mode "Ephemeral" not supported by driver {DRIVER} '
    )
    assert list(sim.said("FailedMount")) == ([failed + problem] if problem else [])
    assert sim.phase("web") == ("Pending" if problem else "Running")


def test_what_a_kubelet_before_us_left_in_use_is_taken_back() -> None:
    sim = started()
    sim.server.update("nodes", "n-0", {"status": {"volumesInUse": [UNIQUE]}})
    sim.run_for(seconds=11)
    assert not sim.server.get("nodes", "n-0")["status"].get("volumesInUse")
    assert sim.kubelet().pods is None


def test_light_nodes_take_a_pod_with_a_claim_as_it_is() -> None:
    sim = Simulation(light=True, model=MODEL).run_for(seconds=60)
    claim(sim.server)
    sim.create_pod("db", volumes=[DATA])
    sim.run_for(seconds=3)
    assert sim.phase("db") == "Running"
    assert sim.calls(verb="GET", path="persistentvolume") == []


def test_a_pod_that_a_full_node_cannot_take_is_rejected() -> None:
    sim = started()
    sim.server.create(
        ("csidrivers", "", DRIVER), {"spec": {"nodeAllocatableUpdatePeriodSeconds": 60}}
    )
    claim(sim.server)
    for name in ("db", "other"):
        sim.create_pod(name, volumes=[DATA])
    error = {"message": "no room", "errorCode": 8}
    status = {"attached": False, "attachError": error}
    sim.server.create(("volumeattachments", "", ATTACHMENT), {"status": status})
    sim.run_for(seconds=120)
    assert sim.phase("db") == "Pending"
    sim.run_for(seconds=15)
    found = sim.status("db")
    assert (found["phase"], found["reason"]) == ("Failed", "VolumeAttachmentLimitExceeded")
    assert found["message"] == (
        "Pod was rejected: Node has reached its volume attachment limit, rejecting pod. unmounted "
        "volumes=[data], unattached volumes=[data], failed to process volumes=[]: context deadline "
        "exceeded"
    )
    assert not sim.server.get("nodes", "n-0")["status"].get("volumesInUse")
    assert sim.phase("other") == "Failed"
    for name in ("db", "other"):
        sim.server.delete_pod(name)
    sim.run_for(seconds=5)
    assert sim.kubelet().pods is None


def test_a_block_volume_cannot_be_mounted() -> None:
    sim = started()
    claim(sim.server)
    sim.server.update("persistentvolumes", "pv-1", {"spec": {"volumeMode": "Block"}})
    sim.create_pod("db", volumes=[DATA])
    sim.run_for(seconds=2)
    [text] = sim.said("FailedMount")
    assert text.endswith(
        "failed to process volumes=[data]: volume data has volumeMode Block, but is specified in "
        "volumeMounts"
    )


def test_a_driver_that_needs_no_attachment_is_not_waited_for() -> None:
    sim = started()
    sim.server.create(("csidrivers", "", DRIVER), {"spec": {"attachRequired": False}})
    sim.run_for(seconds=1)
    claim(sim.server)
    since_s = sim.now_s
    sim.create_pod("db", volumes=[DATA])
    sim.run_for(seconds=3)
    assert sim.phase("db") == "Running"
    claims = "persistentvolumeclaims"
    mounted, synced = [claims, "persistentvolumes", claims, claims], [claims, "persistentvolumes"]
    assert reads(sim, since_s) == [*mounted, *synced]
    assert "volumesInUse" not in sim.server.get("nodes", "n-0")["status"]


def test_claims_come_through_an_outage() -> None:
    sim = started()
    claim(sim.server)
    sim.create_pod("db", volumes=[DATA])
    sim.inject(ApiServerAnswers(503), seconds=40)
    sim.run_for(seconds=70)
    attach(sim)
    sim.run_for(seconds=160)  # the token's volume waits for the watch of kube-root-ca.crt
    assert sim.phase("db") == "Running"
    assert sim.server.get("nodes", "n-0")["status"]["volumesInUse"] == [UNIQUE]


def host_path(path: str, kind: str) -> list[dict[str, object]]:
    return [{"name": "h", "hostPath": {"path": path, "type": kind}}]


def test_a_host_path_of_another_type_is_not_mounted_until_a_pod_makes_it() -> None:
    sim = started()
    sim.create_pod("web", volumes=host_path("/data/web", "Directory"))
    sim.create_pod("dns", volumes=host_path("/etc/hostname", "Directory"))
    sim.create_pod("log", volumes=host_path("/var/log", "Directory"))
    sim.run_for(seconds=10)
    assert [sim.phase(each) for each in ("web", "dns", "log")] == ["Pending", "Pending", "Running"]
    start = 'MountVolume.SetUp failed for volume "h" : hostPath type check failed'
    told = sim.said("FailedMount")
    found = "/etc/hostname is not a directory, it's a File"
    lost = "/data/web is not a directory, unable to determine its type"
    assert set(told) == {f"{start}: {found}", f'{start}, {lost}: path "/data/web" does not exist'}
    assert set(told.values()) == {5}  # after 0.5, 1, 2 and 4 s once more
    sim.create_pod("maker", volumes=host_path("/data/web", "DirectoryOrCreate"))
    sim.run_for(seconds=20)
    phases = [sim.phase(each) for each in ("maker", "web", "dns")]
    assert phases == ["Running", "Running", "Pending"]


@pytest.mark.parametrize("inits", [(), ("init",)])
def test_a_pod_that_is_deleted_before_its_containers_exist_is_told_as_failed(
    inits: tuple[str, ...],
) -> None:
    """Containers that never ended count as lost; those behind an init container still wait."""
    sim = started()
    statuses = []

    def note(_key: object, _old: object, new: Object | None) -> None:
        if new is not None and new["metadata"].get("name") == "web":
            statuses.append(new["status"])

    sim.server.listeners.append(note)
    containers = [{"name": each, "image": "nginx:1"} for each in inits]
    volumes = host_path("/data/web", "Directory")
    sim.create_pod("web", volumes=volumes, initContainers=containers)
    sim.run_for(seconds=10)
    sim.server.delete_pod("web")
    sim.run_for(seconds=10)
    assert not sim.phase("web")
    last = statuses[-1]
    assert last["phase"] == "Failed"
    lost = (
        137,
        "ContainerStatusUnknown",
        "The container could not be located when the pod was terminated",
    )
    [shown] = last["containerStatuses"]
    if inits:
        assert shown["state"] == {"waiting": {"reason": "PodInitializing"}}
        [shown] = last["initContainerStatuses"]
    found = shown["state"]["terminated"]
    assert (found["exitCode"], found["reason"], found["message"]) == lost
    assert (shown["imageID"], shown.get("containerID")) == ("", None)


def test_what_a_pod_made_on_its_host_is_there_when_no_pod_is_left() -> None:
    sim = started()
    sim.create_pod("maker", volumes=host_path("/data/web", "DirectoryOrCreate"))
    sim.run_for(seconds=10)
    sim.server.delete_pod("maker", grace_s=1)
    sim.run_for(seconds=120)
    assert sim.phase("maker") == ""
    sim.create_pod("web", volumes=host_path("/data/web", "Directory"))
    sim.run_for(seconds=10)
    assert sim.phase("web") == "Running"
