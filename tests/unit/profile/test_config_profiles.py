"""Node profiles: what is accepted, what is compiled, what is refused and how."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from world.profiles import HEAD, profile, refusal

from fleet import KUBERNETES_VERSION
from fleet.errors import UsageError
from fleet.profile.image_behavior import parse_image
from fleet.profile.loader import (
    NodeMix,
    json_schema,
    list_profiles,
    load_file,
    load_mix,
    load_source,
    mix_of,
    parse_documents,
    show_profile,
)
from fleet.profile.node_import import import_nodes
from fleet.profile.node_profile import NodeProfile
from fleet.profile.option_types import ProfileChoice
from fleet.profile.pod_behavior import select_behavior
from fleet.profile.settings import Settings
from fleet.runtime.image_store import ImageStore

REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())
REAL_NODE = Path(__file__).with_name("node-of-eks.yaml").read_text()


def capacity(**values: str) -> dict[str, object]:
    return {"status": {"capacity": {key.replace("_", "-"): each for key, each in values.items()}}}


def test_a_pasted_node_keeps_the_kind_of_machine_and_drops_the_machine() -> None:
    model = profile(template=yaml.safe_load(REAL_NODE))
    assert model.kubelet_version == "v1.35.4-eks-1"
    assert model.release.declared_features == ()
    assert model.taints == (("team", "ml", "NoSchedule"),)
    assert model.provider_id == ""
    assert model.annotations == {
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
        "example.com/keep": "me",
    }
    assert model.labels["beta.kubernetes.io/arch"] == "arm64"
    assert "kubernetes.io/hostname" not in model.labels
    assert model.allocatable["cpu"] == "7910m"
    assert model.pods_max == 58
    assert model.kubelet_port == 10255
    assert "machineID" not in model.node_info
    assert (model.os, model.arch) == ("linux", "arm64")
    assert not any(handler.user_namespaces for handler in model.runtime_handlers)
    assert model.supplemental_groups_policy is None


def test_an_imported_node_makes_a_valid_profile() -> None:
    text = import_nodes(REAL_NODE).text
    (found,) = parse_documents(text, "imported")
    assert isinstance(found, NodeProfile)
    model = found.compiled()
    pasted = profile(template=yaml.safe_load(REAL_NODE))
    assert model.name == "m7g-2xlarge"
    assert model.provider_id == "fleet://{{name}}"
    assert (model.capacity, model.allocatable) == (pasted.capacity, pasted.allocatable)
    assert (model.labels, model.taints) == (pasted.labels, pasted.taints)
    for gone in ("5b4f2b8e", "i-0123", "ip-10-0-0-1", "unreachable", "10.0.0.1", "ec2d"):
        assert gone not in text
    assert import_nodes(REAL_NODE, "mine").text.count("name: mine") == 1
    assert "name: imported" in import_nodes("{kind: Node, metadata: {name: '..'}}").text


@pytest.mark.parametrize(
    "text",
    [
        "kind: Pod",
        "",
        "[]",
        "a: [",
        "{kind: List, items: []}",
        "{kind: List, items: [{kind: Pod}]}",
    ],
)
def test_only_a_node_can_be_imported(text: str) -> None:
    with pytest.raises(UsageError, match="node"):
        import_nodes(text)


KWOK_NODE = """
apiVersion: v1
kind: Node
metadata:
  name: kwok-node-%d
  annotations: {kwok.x-k8s.io/node: fake}
  labels: {type: kwok, node-role.kubernetes.io/agent: "", kubernetes.io/hostname: kwok-node-%d}
spec: {taints: [{key: kwok.x-k8s.io/node, value: fake, effect: NoSchedule}]}
status:
  capacity: {cpu: 32, memory: 256Gi, pods: 110, nvidia.com/gpu: 8}
  allocatable: {cpu: 30, memory: 250Gi, pods: 100, nvidia.com/gpu: 8}
  nodeInfo: {kubeletVersion: fake, kubeProxyVersion: fake, operatingSystem: linux}
"""


def test_a_node_of_kwok_becomes_a_profile_and_its_version_is_left_out_with_a_notice() -> None:
    text, notices = import_nodes(KWOK_NODE % (7, 7))
    (found,) = parse_documents(text, "imported")
    assert isinstance(found, NodeProfile)
    model = found.compiled()
    assert model.kubelet_version == KUBERNETES_VERSION
    assert model.capacity["nvidia.com/gpu"] == "8"
    assert model.taints == (("kwok.x-k8s.io/node", "fake", "NoSchedule"),)
    assert "kwok.x-k8s.io/node" not in model.annotations  # or KWOK would take it for its own
    assert model.admin_labels == {"node-role.kubernetes.io/agent"}
    [notice] = notices
    assert "kubeletVersion 'fake' of 1 Node is no version" in notice
    assert import_nodes(REAL_NODE).notices == ()


def test_so_does_one_that_is_pasted_into_a_profile() -> None:
    node = yaml.safe_load(KWOK_NODE % (7, 7))
    (found,) = parse_documents(yaml.safe_dump({**HEAD, "spec": {"template": node}}), "x.yaml")
    assert isinstance(found, NodeProfile)
    assert found.compiled().kubelet_version == KUBERNETES_VERSION
    emulated = "its nodes emulate a kubelet of the API server's version"
    assert NodeMix([found.compiled()], [1]).warnings == [
        f"profile p: kubeletVersion 'fake' is no version: {emulated}"
    ]
    assert "kubeletVersion: 'fake' is not a version" in refusal(kubeletVersion="fake")


def zoned(zone: str, at: int) -> dict[str, Any]:
    node: dict[str, Any] = yaml.safe_load(REAL_NODE)
    node["metadata"]["name"] = f"ip-10-0-0-{at}"
    node["metadata"]["labels"] |= {"topology.kubernetes.io/zone": zone, "instance-id": f"i-{at}"}
    node["status"]["capacity"]["memory"] = f"{32499188 + 4 * at}Ki"
    return node


@pytest.mark.parametrize("form", ["yaml", "json", "documents", "NodeList"])
def test_nodes_of_a_cluster_become_a_profile_for_each_kind_of_machine(form: str) -> None:
    nodes = [zoned("abc"[at % 3], at) for at in range(6)]
    nodes += [yaml.safe_load(KWOK_NODE % (at, at)) for at in range(2)]
    if form == "documents":
        text = yaml.safe_dump_all(nodes)
    else:
        kind = "NodeList" if form == "NodeList" else "List"
        items = [{k: v for k, v in node.items() if k != "kind"} for node in nodes]
        listed = {"kind": kind, "items": items if form == "NodeList" else nodes}
        text = json.dumps(listed, indent="\t") if form == "json" else yaml.safe_dump(listed)
    made, notices = import_nodes(text)
    real, kwok = parse_documents(made, "imported")
    assert isinstance(real, NodeProfile)
    assert isinstance(kwok, NodeProfile)
    assert (real.spec.weight, kwok.spec.weight) == (6, 2)
    assert (real.metadata.name, kwok.metadata.name) == ("m7g-2xlarge", "kwok-node-0")
    labels = real.spec.template.metadata.labels
    assert not {"instance-id", "topology.kubernetes.io/zone"} & set(labels)
    [spread] = real.spec.topology_spread
    assert spread.values == ("a", "b", "c")
    assert [line for line in notices if "'fake' of 2 Nodes" in line] == list(notices)


def test_kinds_of_machines_with_one_name_are_told_apart() -> None:
    other = yaml.safe_load(REAL_NODE)
    other["spec"]["taints"] = []
    text = import_nodes(yaml.safe_dump_all([yaml.safe_load(REAL_NODE), other])).text
    names = [each.metadata.name for each in parse_documents(text, "imported")]
    assert names == ["m7g-2xlarge", "m7g-2xlarge-2"]


def test_paths_of_a_machine() -> None:
    declared = [{"path": "/mnt/disks/a"}, {"path": "/dev/nvme0n1", "type": "BlockDevice"}]
    found = profile(machinePaths=declared).machine_paths
    assert [(each.path, each.type) for each in found] == [
        ("/mnt/disks/a", "Directory"),
        ("/dev/nvme0n1", "BlockDevice"),
    ]


def test_a_node_of_windows_is_as_its_kubelet_makes_it() -> None:
    info = {"operatingSystem": "windows", "kernelVersion": "10.0.26100.1742"}
    model = profile(template={"status": {"nodeInfo": info}})
    assert model.is_windows
    assert model.labels["kubernetes.io/os"] == "windows"
    assert model.labels["node.kubernetes.io/windows-build"] == "10.0.26100"
    assert model.node_info["osImage"].startswith("Windows Server")
    assert not any(name.startswith("hugepages-") for name in model.capacity)
    assert not model.app_armor
    assert not model.supplemental_groups_policy
    assert not any(each.recursive_read_only_mounts for each in model.runtime_handlers)
    agent = model.filled(model.user_agent).decode()
    assert agent.startswith(f"kubelet.exe/{KUBERNETES_VERSION} (windows/amd64)")
    by_label = profile(template={"metadata": {"labels": {"kubernetes.io/os": "windows"}}})
    assert by_label.node_info["operatingSystem"] == "windows"
    assert by_label.labels["node.kubernetes.io/windows-build"] == "10.0.20348"
    linux = profile()
    assert "node.kubernetes.io/windows-build" not in linux.labels
    assert linux.filled(linux.user_agent).startswith(b"kubelet/")


def test_allocatable_is_what_a_real_node_shows() -> None:
    """20959212Ki of disk with 1Gi reserved leave 18242267924 bytes: read off a real EKS node."""
    model = profile(
        template=capacity(cpu="2", memory="4Gi", ephemeral_storage="20959212Ki"),
        kubeletConfiguration={"kubeReserved": {"cpu": "70m", "ephemeral-storage": "1Gi"}},
    )
    assert model.allocatable == {
        "cpu": "1930m",
        "ephemeral-storage": "18242267924",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "0",
        "memory": "3996Mi",
        "pods": "110",
    }


def test_huge_pages_and_both_reservations_come_off_the_memory() -> None:
    model = profile(
        template=capacity(memory="8Gi", **{"hugepages-2Mi": "1Gi"}),
        kubeletConfiguration={
            "kubeReserved": {"memory": "1Gi"},
            "systemReserved": {"memory": "512Mi"},
            "evictionHard": {"memory.available": "512Mi"},
        },
    )
    assert model.allocatable["memory"] == "5Gi"
    assert "hugepages-1Gi" not in model.capacity
    assert model.allocatable["ephemeral-storage"] == "100Gi"


def test_reserving_more_than_there_is_leaves_nothing() -> None:
    model = profile(kubeletConfiguration={"kubeReserved": {"memory": "1Ti"}})
    assert model.allocatable["memory"] == "0"


def test_pods_come_from_the_configuration_then_the_template_then_upstream() -> None:
    template = capacity(cpu="4", pods="250")
    assert profile().pods_max == 110
    assert profile(template=template).capacity["pods"] == "250"
    assert profile(template=template, kubeletConfiguration={"maxPods": 30}).pods_max == 30
    assert profile(template=template, kubeletConfiguration={"podsPerCore": 10}).pods_max == 40


@pytest.mark.parametrize(
    ("written", "update_s", "report_s"),
    [
        ({}, 10, 300),
        ({"nodeStatusUpdateFrequency": "20s"}, 20, 20),
        ({"nodeStatusReportFrequency": "1m"}, 10, 60),
        ({"nodeStatusUpdateFrequency": "20s", "nodeStatusReportFrequency": "5m"}, 20, 300),
    ],
)
def test_the_report_period_follows_the_update_period_when_only_that_is_set(
    written: dict[str, str], update_s: int, report_s: int
) -> None:
    model = profile(kubeletConfiguration=written)
    assert model.kubelet.node_status_update_frequency_ns == update_s * 1_000_000_000
    assert model.kubelet.status_report_ns == report_s * 1_000_000_000


def test_thresholds_are_compiled_and_merged_only_when_asked() -> None:
    hard = {"memory.available": "1Gi"}
    soft = {"evictionSoft": {"nodefs.available": "20%"}}
    graces = {"evictionSoftGracePeriod": {"nodefs.available": "2m"}}
    model = profile(kubeletConfiguration={"evictionHard": hard, **soft, **graces})
    assert [each.signal for each in model.kubelet.hard_thresholds] == ["memory.available"]
    assert model.kubelet.hard_thresholds[0].quantity.value == 1 << 30
    assert model.kubelet.soft_thresholds[0].percent == 20.0
    assert model.kubelet.soft_thresholds[0].grace_ns == 120_000_000_000
    merging = {"evictionHard": hard, "mergeDefaultEvictionSettings": True}
    assert len(profile(kubeletConfiguration=merging).kubelet.hard_thresholds) == 5
    assert "evictionSoftGracePeriod lacks" in refusal(kubeletConfiguration=soft)


def test_keys_of_a_kubelet_configuration_that_decide_nothing_are_told() -> None:
    written = {"oomScoreAdj": -999, "cgroupDriver": "systemd", "maxPods": 5}
    model = profile(kubeletConfiguration=written)
    assert model.kubelet.without_effect == ("cgroupDriver", "oomScoreAdj")


@pytest.mark.parametrize(("written", "message"), REFUSED["kubelet"])
def test_what_a_kubelet_refuses_to_start_with(written: dict[str, object], message: str) -> None:
    assert refusal(kubeletConfiguration=written) == f"spec.kubeletConfiguration{message}"


@pytest.mark.parametrize(("written", "message"), REFUSED["machine"])
def test_what_a_kubelet_refuses_on_its_machine(written: dict[str, object], message: str) -> None:
    status = {"capacity": {"cpu": "8"}, "nodeInfo": {"swap": {"capacity": 1 << 30}}}
    assert refusal(template={"status": status}, kubeletConfiguration=written) == f"spec: {message}"


def test_swap_and_local_storage_of_a_machine() -> None:
    kubelet = {
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
    }
    status = {"nodeInfo": {"swap": {"capacity": 1 << 30}}}
    model = profile(template={"status": status}, kubeletConfiguration=kubelet)
    assert model.kubelet.without_effect == ()
    assert model.swap_bytes == 1 << 30
    for amounts in (model.capacity, model.allocatable):
        assert sorted(amounts) == ["cpu", "hugepages-1Gi", "hugepages-2Mi", "memory", "pods"]


def test_a_cgroup_may_be_enforced_that_is_named() -> None:
    reserved = {"enforceNodeAllocatable": ["pods", "kube-reserved"], "kubeReservedCgroup": "/kube"}
    kubelet = profile(kubeletConfiguration=reserved).kubelet
    assert kubelet.enforce_node_allocatable == ("pods", "kube-reserved")
    assert kubelet.without_effect == ("kubeReservedCgroup",)


def test_taints_of_template_and_configuration_stand_once() -> None:
    taint = {"key": "gpu", "effect": "NoSchedule"}
    model = profile(
        template={"spec": {"taints": [taint | {"value": "old"}]}},
        kubeletConfiguration={"registerWithTaints": [taint | {"value": "new"}]},
    )
    assert model.taints == (("gpu", "new", "NoSchedule"),)


@pytest.mark.parametrize(("spec", "message"), REFUSED["spec"])
def test_a_mistake_is_told_with_file_path_and_what_is_allowed(
    spec: dict[str, object], message: str
) -> None:
    assert refusal(**spec).startswith(message)


def test_an_unknown_key_within_an_optional_part_lists_the_known_ones() -> None:
    text = yaml.safe_dump(HEAD | {"kind": "PodBehavior"})
    delay = "{distribution: Constant, value: 2s, zzz: 1}"
    with pytest.raises(
        UsageError, match=r"startDelay: unknown key 'zzz'; known keys: distribution,"
    ):
        parse_documents(f"{text}spec: {{containers: [{{startDelay: {delay}}}]}}", "f")


@pytest.mark.parametrize(("text", "message"), REFUSED["document"])
def test_what_is_no_document_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_documents(text, "f")
    assert str(caught.value).startswith(message)


def test_shipped_profiles_are_listed_shown_and_valid() -> None:
    found = {each.name: each.kind for each in list_profiles()}
    assert {name for name, kind in found.items() if kind == "NodeProfile"} == {
        "default",
        "large",
        "gpu",
        "arm64",
        "spot",
        "edge",
    }
    for name in found:
        assert load_source(name)[0].metadata.name == name
        assert f"name: {name}" in show_profile(name)
    assert all(each.description for each in list_profiles())


def test_shipped_nodes_look_like_the_machines_they_are() -> None:
    models = {name: load_mix((ProfileChoice(name),)).models[0] for name in ("gpu", "arm64", "edge")}
    assert [(each.resource, each.total) for each in models["gpu"].devices] == [
        ("nvidia.com/gpu", 8)
    ]
    assert "nvidia.com/gpu" not in models["gpu"].capacity  # before the device plugin registered
    assert models["gpu"].taints == (("nvidia.com/gpu", "present", "NoSchedule"),)
    assert models["arm64"].arch == models["edge"].arch == "arm64"
    assert models["edge"].capacity["pods"] == "30"
    for model in models.values():
        assert model.kubelet_version == KUBERNETES_VERSION


PAUSES = ("3.10", "3.10.1", "3.10.2")
"""Of Kubernetes 1.33, of 1.34 and 1.35, of 1.36 and 1.37.

Source: cmd/kubeadm/app/constants/constants.go, PauseVersion.
"""


@pytest.mark.parametrize("name", ["default", "large", "gpu", "arm64", "spot", "edge"])
def test_shipped_nodes_have_pause_images_and_about_as_many_as_a_status_shows(name: str) -> None:
    [model] = load_mix((ProfileChoice(name),)).models
    assert 44 <= len(model.images_preloaded) < 50  # one that a pod pulls is shown, too
    names = [each for image in model.images_preloaded for each in image.names]
    assert {f"registry.k8s.io/pause:{version}" for version in PAUSES} <= {*names}
    assert len(set(names)) == 2 * len(model.images_preloaded)
    assert all(parse_image(each).full_name == each for each in names)
    assert 8_000 < len(ImageStore(model).status_json()) < 9_500


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        ("", "fleet://zone-b/n-4"),
        ("none", ""),
        ("fleet", "fleet://zone-b/n-4"),
        ("aws:///{{zone}}/i-{{index}}", "aws:///zone-b/i-4"),
    ],
)
def test_an_option_says_the_provider_ids_of_all_nodes(option: str, shown: str) -> None:
    made = mix_of(Settings(provider_id=option))
    assert made.model_of(4).identity(4, "n-4").provider_id == shown


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"did you mean 'gpu'\?\); known are arm64, bad-image, .*"):
        load_source("gpuu")
    with pytest.raises(UsageError, match="No such file"):
        load_source("./absent.yaml")
    binary = tmp_path / "x.yaml"
    binary.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        load_file(binary)
    binary.write_bytes(b"#" * 5_000_000)
    with pytest.raises(UsageError, match="is it a profile"):
        load_source(str(binary))


def test_a_file_holds_one_profile_and_its_behaviours(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    behavior = HEAD | {"kind": "PodBehavior", "metadata": {"name": "b"}}
    path.write_text(yaml.safe_dump_all([HEAD, behavior]))
    choices = (ProfileChoice(str(path)), ProfileChoice("gpu"), ProfileChoice("slow-start"))
    models = load_mix(choices).models
    names = [[behavior.name for behavior in model.behaviors] for model in models]
    assert names == [["b", "slow-start"], ["slow-start"]]
    assert select_behavior(models[0].behaviors, {}, "d", {}).name == "b"
    only = load_mix((ProfileChoice("slow-start"),)).models
    assert [model.name for model in only] == ["default"]
    path.write_text(yaml.safe_dump_all([HEAD, HEAD]))
    with pytest.raises(UsageError, match=r"two NodeProfiles have one name: p, p"):
        load_mix((ProfileChoice(str(path)),))


def test_the_profiles_of_a_file_share_its_weight_by_their_own(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    big = {**HEAD, "metadata": {"name": "big"}, "spec": {"weight": 90}}
    small = {**HEAD, "metadata": {"name": "small"}, "spec": {"weight": 10}}
    path.write_text(yaml.safe_dump_all([big, small]))
    made = load_mix((ProfileChoice(str(path), 3), ProfileChoice("gpu", 1)))
    counts = Counter(made.model_of(index).name for index in range(400))
    assert counts == {"big": 270, "small": 30, "gpu": 100}


def mix(*weights: int, **spec: object) -> NodeMix:
    return NodeMix([profile(**spec) for _ in weights], weights)


@pytest.mark.parametrize("weights", [(1,), (1, 1), (3, 1), (7, 2, 1), (99, 1)])
def test_a_mix_gives_every_profile_its_share_of_every_stretch(weights: tuple[int, ...]) -> None:
    made = mix(*weights)
    places = {id(model): at for at, model in enumerate(made.models)}
    counts: Counter[int] = Counter()
    for index in range(3 * sum(weights)):
        at = places[id(made.model_of(index))]
        assert made.models[at].ordinal(index) == counts[at]
        counts[at] += 1
        for each, weight in enumerate(weights):
            assert abs(counts[each] - weight * (index + 1) / sum(weights)) < len(weights)
    assert [counts[at] for at in range(len(weights))] == [3 * weight for weight in weights]


def test_topology_spreads_over_the_nodes_of_each_profile() -> None:
    """Two profiles in turn and two zones must not put a profile into one zone."""
    spread = [
        {"topologyKey": "topology.kubernetes.io/zone", "values": ["a", "b"]},
        {"topologyKey": "rack", "values": ["1", "2", "3"]},
    ]
    made = mix(1, 1, topologySpread=spread)
    for model in made.models:
        mine = [index for index in range(24) if made.model_of(index) is model]
        assert Counter(tuple(model.topology(index).values()) for index in mine) == {
            (zone, rack): 2 for zone in "ab" for rack in "123"
        }


def test_identity_is_a_function_of_index_and_name() -> None:
    model = load_mix().models[0]
    facts = model.identity(4, "fleet-00004")
    assert facts == model.identity(4, "fleet-00004")
    assert facts.addresses == (("InternalIP", "198.18.0.5"), ("Hostname", "fleet-00004"))
    assert (facts.zone, facts.region) == ("zone-b", "fleet-1")
    assert facts.provider_id == "fleet://zone-b/fleet-00004"
    assert facts.labels["kubernetes.io/hostname"] == "fleet-00004"
    assert facts.labels["topology.kubernetes.io/zone"] == "zone-b"
    other = model.identity(5, "fleet-00005")
    for key, length in (("machineID", 32), ("systemUUID", 36), ("bootID", 36)):
        assert len(facts.node_info[key]) == length
        assert facts.node_info[key] != other.node_info[key]
    assert len({model.addresses(index) for index in range(100_000)}) == 100_000


@pytest.mark.parametrize(
    ("pool", "addresses"),
    [
        ("10.0.0.0/8,fd00::/64", ["10.0.0.5", "fd00::5"]),
        ("fd00::/64,10.0.0.0/8", ["fd00::5", "10.0.0.5"]),
        ("fd00::/64", ["fd00::5"]),
    ],
)
def test_a_node_has_an_address_of_each_pool(pool: str, addresses: list[str]) -> None:
    """Source: pkg/kubelet/nodestatus/setters.go, NodeAddress."""
    model = mix(1, addressPool=pool, cloudProvider="external").models[0]
    facts = model.identity(4, "n")
    assert facts.addresses == (*(("InternalIP", ip) for ip in addresses), ("Hostname", "n"))
    assert facts.annotations["alpha.kubernetes.io/provided-node-ip"] == ",".join(addresses)
    assert model.index_of(model.addresses(4)) == 4


@pytest.mark.parametrize(("pool", "room"), [("10.0.0.0/29", 6), ("10.0.0.0/30,fd00::/64", 2)])
def test_the_smallest_pool_says_how_many_nodes_there_may_be(pool: str, room: int) -> None:
    made = mix(1, addressPool=pool)
    made.check_addresses(room)
    with pytest.raises(UsageError, match=f"{pool} has room for {room} nodes, {room + 1} are asked"):
        made.check_addresses(room + 1)


def test_a_shared_cluster_gets_no_zone_labels_and_no_newer_kubelet() -> None:
    made = load_mix()
    made.choose_version("", "v1.34.2+k3s1")
    made.adapt(zone_labels=False)
    model = made.models[0]
    facts = model.identity(0, "fleet-00000")
    assert not [key for key in facts.labels if key.startswith("topology.kubernetes.io/")]
    assert facts.provider_id == "fleet://zone-a/fleet-00000"
    assert facts.node_info["kubeletVersion"] == "v1.34.2+k3s1"
    assert model.release.declared_features == ()


def test_features_are_declared_by_version_and_gate() -> None:
    assert len(profile().release.declared_features) == 4
    assert profile(kubeletVersion="1.35.4").kubelet_version == "v1.35.4"
    assert profile(kubeletVersion="v1.35.4").release.declared_features == ()
    off = {"featureGates": {"NodeDeclaredFeatures": False}}
    assert profile(kubeletConfiguration=off).release.declared_features == ()
    one = {"featureGates": {"ExtendWebSocketsToKubelet": False, "Other": True}}
    assert len(profile(kubeletConfiguration=one).release.declared_features) == 3


def test_the_shared_status_is_what_a_kubelet_sends() -> None:
    handlers = [{"name": "z"}, {"name": "", "features": {"userNamespaces": True}}]
    status = {"runtimeHandlers": handlers, "features": {}}
    model = profile(template={"status": status})
    sent = orjson.loads(orjson.dumps(model.status_json()))
    assert model.identity(0, "n").kubelet_port == 10250
    assert [handler["name"] for handler in sent["runtimeHandlers"]] == ["", "z"]
    assert "features" not in sent
    old = profile(kubeletVersion="v1.35.0", template={"status": {"runtimeHandlers": []}})
    assert set(old.status_json()) == {"capacity", "allocatable", "features"}


def test_the_schema_knows_both_kinds_by_the_names_that_users_write() -> None:
    schema = json_schema()
    text = orjson.dumps(schema).decode()
    for name in ("NodeProfile", "PodBehavior", "topologySpread", "nodeStatusUpdateFrequency"):
        assert f'"{name}"' in text
    assert "kubelet_version" not in text


def test_a_key_without_a_value_is_left_out() -> None:
    text = yaml.safe_dump(HEAD | {"kind": "PodBehavior"})
    [found] = parse_documents(f"{text}spec: {{sandboxDelay: , containers: [{{usage: }}]}}", "f")
    [plain] = parse_documents(f"{text}spec: {{containers: [{{}}]}}", "f")
    assert found == plain
    with pytest.raises(UsageError, match=r"unknown key 'sandboxdelay'; did you mean"):
        parse_documents(f"{text}spec: {{sandboxdelay: }}", "f")
