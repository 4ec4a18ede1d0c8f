"""NodeProfile: what a user writes about a kind of node, and how it becomes a `NodeModel`.

Values stand in this order, the first that speaks wins: the spec, the template, fleet's defaults.
What a server or a controller sets on a Node is ignored in the template, so that a real Node can be
pasted. Source: pkg/kubelet/kubelet_node_status.go, initialNode.
"""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from fleet import KUBERNETES_VERSION
from fleet.k8s.well_known import HOSTNAME_LABEL, OS_LABEL, PROVIDED_ADDRESS
from fleet.profile import node_model, schema
from fleet.profile.addresses import AddressPool
from fleet.profile.agent_behavior import (
    AGENTS_MAX,
    USER_AGENT_PLACEHOLDERS,
    AgentChoice,
    AgentModel,
)
from fleet.profile.image_behavior import ImagePulls
from fleet.profile.kubelet_configuration import (
    CredentialProvider,
    KubeletConfiguration,
    ResolvConf,
    Taint,
    TaintSpec,
    cpus_in,
)
from fleet.profile.machine import DeviceModel, DraDriver, MachinePath, RuntimeSpec, ShutdownSchedule
from fleet.profile.pod_behavior import USUAL_RUN_TIMES, CSIDriver, PodBehavior, RunTimes
from fleet.profile.release import checked_version, is_version, release_of
from fleet.profile.usage import Usage
from fleet.quantity import Quantity, parse_quantity, whole_quantity

KUBELET_PORT = 10250
PODS_MAX = 110
WEIGHT_MAX = 10_000
IMAGE_BYTES_MAX = 2**53
THREAD_BYTES = 16 << 10  # Source: Linux, set_max_threads
PIDS_MAX = 4 << 20  # Source: Linux, PID_MAX_LIMIT

CAPACITY_DEFAULT = {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi"}
HUGE_PAGES_DEFAULT = {"hugepages-1Gi": "0", "hugepages-2Mi": "0"}
QUANTITIES = {
    name: parse_quantity(text) for name, text in (CAPACITY_DEFAULT | HUGE_PAGES_DEFAULT).items()
}
"""The defaults, parsed once."""
NODE_INFO_DEFAULT = {
    "kernelVersion": "6.8.0-90-generic",
    "osImage": "Ubuntu 24.04.3 LTS",
    "containerRuntimeVersion": "containerd://2.1.5",
}
WINDOWS_INFO_DEFAULT = {
    "kernelVersion": "10.0.20348.3932",
    "osImage": "Windows Server 2022 Datacenter",
    "containerRuntimeVersion": "containerd://2.1.5",
}
WINDOWS_BUILD_LABEL = "node.kubernetes.io/windows-build"
NODE_ANNOTATIONS = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
SERVER_TAINT_PREFIXES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints that controllers put on a Node: a pasted one must not make every node unschedulable."""
UNINITIALIZED = ("node.cloudprovider.kubernetes.io/uninitialized", "true", "NoSchedule")
"""The taint of a Node that a cloud controller manager has not seen yet; that takes it away."""
PASTED_ANNOTATIONS = frozenset(
    {
        PROVIDED_ADDRESS,
        "csi.volume.kubernetes.io/nodeid",
        "kubectl.kubernetes.io/last-applied-configuration",
        "kwok.x-k8s.io/node",  # by which KWOK's controller takes a Node for its own
        "node.alpha.kubernetes.io/ttl",
        "volumes.kubernetes.io/controller-managed-attach-detach",
    }
)
"""Annotations of a real Node that belong to that one node, or that the kubelet sets itself."""


def _pools(text: object) -> object:
    """Read the CIDR that addresses come from, or one of each family, the primary one first."""
    if isinstance(text, tuple):
        return text
    pools = tuple(map(_pool, str(text).split(",")))
    if len(pools) != len({pool.version for pool in pools}):
        raise ValueError(f"{text!r} has two CIDRs of one family")
    return pools


def _pool(text: str) -> AddressPool:
    try:
        pool = ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a CIDR such as 198.18.0.0/15") from error
    if pool.num_addresses < 4:
        raise ValueError(f"{text!r} has no room for nodes")
    return pool


def _user_agent(text: object) -> object:
    """Refuse a user agent that no header can carry, or that nobody fills."""
    schema.check_placeholders(text, USER_AGENT_PLACEHOLDERS)
    if not re.fullmatch(r"[!-~]([ -~]{0,254}[!-~])?", str(text)):
        raise ValueError(f"{text!r} is not 1 to 256 letters, digits and signs of ASCII")
    return text


class _Template(schema.Spec):
    """A part of a pasted Node: what is not read is ignored."""

    model_config = ConfigDict(extra="ignore")


class TemplateMetadata(_Template):
    """Labels and annotations of a Node."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class TemplateTaint(TaintSpec):
    """A taint of a Node, with whatever else stands there."""

    model_config = _Template.model_config


class TemplateSpec(_Template):
    """The spec of a Node."""

    provider_id: Annotated[str, BeforeValidator(schema.check_placeholders)] = ""
    taints: tuple[TemplateTaint, ...] = ()


class TemplateImage(_Template):
    """An image of a Node."""

    names: tuple[str, ...] | None = ()
    size_bytes: Annotated[int, Field(ge=0, le=IMAGE_BYTES_MAX)] = 0


class TemplateHandlerFeatures(_Template):
    """What a runtime handler can do."""

    recursive_read_only_mounts: bool = False
    user_namespaces: bool = False


class TemplateHandler(_Template):
    """A runtime handler of a Node."""

    name: str = ""
    features: TemplateHandlerFeatures = TemplateHandlerFeatures()


class TemplateFeatures(_Template):
    """What the container runtime can do."""

    supplemental_groups_policy: bool | None = None


class TemplateEndpoint(_Template):
    """The kubelet's port."""

    port: Annotated[int, Field(ge=0, le=65535, alias="Port")] = 0


class TemplateEndpoints(_Template):
    """The ports of a Node's daemons."""

    kubelet_endpoint: TemplateEndpoint = TemplateEndpoint()


class TemplateStatus(_Template):
    """The status of a Node."""

    capacity: dict[str, schema.QuantityField] = Field(default_factory=dict)
    allocatable: dict[str, schema.QuantityField] = Field(default_factory=dict)
    node_info: dict[str, object] = Field(default_factory=dict)
    images: tuple[TemplateImage, ...] = ()
    runtime_handlers: tuple[TemplateHandler, ...] | None = None
    features: TemplateFeatures | None = None
    daemon_endpoints: TemplateEndpoints = TemplateEndpoints()


class NodeTemplate(_Template):
    """A core/v1 Node, as `kubectl get node -o yaml` prints it."""

    metadata: TemplateMetadata = TemplateMetadata()
    spec: TemplateSpec = TemplateSpec()
    status: TemplateStatus = TemplateStatus()


class TopologySpread(schema.Spec):
    """A label whose values the nodes take in turn."""

    topology_key: Annotated[str, Field(min_length=1)]
    values: Annotated[tuple[str, ...], Field(min_length=1)]


class NodeProfileSpec(schema.Spec):
    """The spec of a NodeProfile."""

    template: NodeTemplate = NodeTemplate()
    topology_spread: tuple[TopologySpread, ...] = ()
    kubelet_version: Annotated[str, BeforeValidator(checked_version)] | None = None
    weight: Annotated[int, Field(ge=1, le=WEIGHT_MAX)] = 1  # among the profiles of the same file
    kubelet_configuration: KubeletConfiguration = KubeletConfiguration()
    user_agent: Annotated[str, BeforeValidator(_user_agent)] = node_model.USER_AGENT
    address_pools: Annotated[
        tuple[AddressPool, ...],
        BeforeValidator(_pools, json_schema_input_type=str),
        Field(
            alias="addressPool", json_schema_extra={"default": str(node_model.DEFAULT_ADDRESS_POOL)}
        ),
    ] = (node_model.DEFAULT_ADDRESS_POOL,)
    agents: Annotated[tuple[AgentChoice, ...], Field(max_length=AGENTS_MAX)] = ()
    image_pulls: ImagePulls = ImagePulls()
    image_credential_providers: tuple[CredentialProvider, ...] = ()
    usage: Usage = Usage()  # what runs on a node outside of its pods
    cloud_provider: Literal["", "external"] = ""  # the kubelet's --cloud-provider
    pids_max: Annotated[int, Field(ge=1)] | None = None
    resolv_conf: ResolvConf = ResolvConf()
    app_armor: bool = True
    machine_paths: tuple[MachinePath, ...] = ()
    devices: tuple[DeviceModel, ...] = ()
    dynamic_resources: tuple[DraDriver, ...] = ()
    runtime: RuntimeSpec = RuntimeSpec()
    shutdown: ShutdownSchedule | None = None
    csi_drivers: tuple[CSIDriver, ...] = ()
    defaults: RunTimes = USUAL_RUN_TIMES  # of pods that nothing is declared of

    @model_validator(mode="after")
    def _names_are_distinct(self) -> "NodeProfileSpec":
        keys = [spread.topology_key for spread in self.topology_spread]
        if len(set(keys)) < len(keys):
            raise ValueError("topologySpread names a topologyKey twice")
        resources = [device.resource for device in self.devices]
        drivers = [each.driver for each in self.dynamic_resources]
        names = [each.name for each in self.agents]
        if len(set(names)) < len(names):
            raise ValueError("agents name one agent twice")
        if len(set(resources)) < len(resources) or len(set(drivers)) < len(drivers):
            raise ValueError("devices or dynamicResources name one resource or driver twice")
        return self

    @model_validator(mode="after")
    def _machine_suits_its_kubelet(self) -> "NodeProfileSpec":
        """Refuse what a kubelet does not start with.

        Source: cmd/kubelet/app/server.go, getReservedCPUs; cm/container_manager_linux.go,
        NewContainerManager; cm/memorymanager/memory_manager.go, validateReservedMemory.
        """
        kubelet = self.kubelet_configuration
        if "fail_swap_on" in kubelet.model_fields_set and kubelet.fail_swap_on and self.swap_bytes:
            raise ValueError("failSwapOn: a kubelet does not start with swap (nodeInfo.swap)")
        if not kubelet.static_policies and not kubelet.reserved_system_cpus:
            return self
        capacity, _ = _resources(self)
        cpus = cpus_in(kubelet.reserved_system_cpus)
        if cpus and max(cpus) >= capacity["cpu"].value:
            raise ValueError(
                f"reservedSystemCPUs: {kubelet.reserved_system_cpus} is not a subset of the "
                f"{capacity['cpu']} CPUs of the capacity"
            )
        if kubelet.cpu_manager_policy == "static" and (
            kubelet.reserved_cpu_milli > capacity["cpu"].milli
        ):
            raise ValueError("cpuManagerPolicy: static: more CPU is reserved than there is")
        if kubelet.memory_manager_policy == "Static":
            _check_reserved_memory(kubelet, capacity)
        return self

    @property
    def swap_bytes(self) -> int:
        """Return how much the machine can swap."""
        swap = self.template.status.node_info.get("swap")
        capacity = swap.get("capacity") if isinstance(swap, dict) else None
        return capacity if isinstance(capacity, int) and capacity > 0 else 0

    @property
    def stated_version(self) -> str:
        """Return the version that the profile asks for, "" for that of the API server."""
        given = self.template.status.node_info.get("kubeletVersion")
        return self.kubelet_version or (given if is_version(given) else "")

    @property
    def unusable_version(self) -> str:
        """Return the kubeletVersion of the template if it is none, such as KWOK's `fake`."""
        version = self.template.status.node_info.get("kubeletVersion")
        return str(version) if version and not self.stated_version else ""


class NodeProfile(schema.Spec):
    """A NodeProfile document: a kind of node."""

    api_version: Literal["fleet.emulator/v1alpha1"]
    kind: Literal["NodeProfile"]
    metadata: schema.Metadata
    spec: NodeProfileSpec = NodeProfileSpec()

    @property
    def notices(self) -> tuple[str, ...]:
        """Return what of the template is not as it stands there, one line each."""
        version = self.spec.unusable_version
        if not version:
            return ()
        what = f"profile {self.metadata.name}: kubeletVersion {version!r} is no version"
        return (f"{what}: its nodes emulate a kubelet of the API server's version",)

    def compiled(
        self,
        behaviors: tuple[PodBehavior, ...] = (),
        agents: tuple[AgentModel, ...] = (),
        directory: Path | None = None,
    ) -> node_model.NodeModel:
        """Return what all nodes of this profile share. `directory` has its file."""
        spec = self.spec
        configuration = spec.kubelet_configuration
        status = spec.template.status
        info = _node_info(spec)
        capacity, allocatable = _resources(spec)
        hides_disk = not configuration.local_storage_capacity_isolation
        shown = [
            {
                name: str(amount)
                for name, amount in sorted(amounts.items())
                if name != "ephemeral-storage" or not hides_disk
            }
            for amounts in (capacity, allocatable)
        ]
        handlers, policy = _runtime_features(spec, info)
        return node_model.NodeModel(
            name=self.metadata.name,
            kubelet_version=info["kubeletVersion"],
            follows_server=not spec.stated_version,
            release=release_of(info["kubeletVersion"]).with_gates(configuration.feature_gates),
            labels=_labels(spec, info),
            annotations=_annotations(spec),
            taints=_taints(spec),
            capacity=shown[0],
            allocatable=shown[1],
            node_info=info,
            os=info["operatingSystem"],
            arch=info["architecture"],
            kubelet_port=configuration.port
            or status.daemon_endpoints.kubelet_endpoint.port
            or KUBELET_PORT,
            pods_max=capacity["pods"].value,
            provider_id=_provider_template(spec),
            runtime_handlers=handlers,
            supplemental_groups_policy=policy,
            topology_spread=tuple(
                (each.topology_key, each.values) for each in spec.topology_spread
            ),
            zone_labels=True,
            address_pools=spec.address_pools,
            agents=agents,
            behaviors=behaviors,
            kubelet=configuration,
            dns=spec.resolv_conf.settings(configuration),
            directory=directory,
            pods_memory_bytes=configuration.pods_memory(capacity["memory"]),
            pids_max=spec.pids_max or min(capacity["memory"].value // (8 * THREAD_BYTES), PIDS_MAX),
            usage=spec.usage,
            images_preloaded=tuple(
                node_model.NodeImage(image.names or (), image.size_bytes) for image in status.images
            ),
            image_pulls=spec.image_pulls,
            credential_providers=spec.image_credential_providers,
            image_disk_bytes=capacity["ephemeral-storage"].value,
            app_armor=spec.app_armor and info["operatingSystem"] != node_model.WINDOWS,
            machine_paths=spec.machine_paths,
            devices=spec.devices,
            dra_drivers=spec.dynamic_resources,
            outages=spec.runtime.all_outages,
            shutdown=spec.shutdown,
            csi_drivers=spec.csi_drivers,
            user_agent=spec.user_agent,
            cloud_is_external=bool(spec.cloud_provider),
            run_times=spec.defaults,
            notices=self.notices,
            swap_bytes=spec.swap_bytes,
        )


def _node_info(spec: NodeProfileSpec) -> dict[str, str]:
    """Return nodeInfo without the machine's identifiers, in upstream's order."""
    given = {key: str(value) for key, value in spec.template.status.node_info.items() if value}
    version = spec.stated_version or KUBERNETES_VERSION
    system = _os(spec)
    defaults = WINDOWS_INFO_DEFAULT if system == node_model.WINDOWS else NODE_INFO_DEFAULT
    info = {key: given.get(key) or default for key, default in defaults.items()}
    labels = spec.template.metadata.labels
    return info | {
        "kubeletVersion": checked_version(version),
        "kubeProxyVersion": "",  # upstream locks it empty
        "operatingSystem": system,
        "architecture": given.get("architecture") or labels.get("kubernetes.io/arch", "amd64"),
    }


def _os(spec: NodeProfileSpec) -> str:
    said = spec.template.status.node_info.get("operatingSystem")
    return str(said or spec.template.metadata.labels.get(OS_LABEL, "linux"))


def _labels(spec: NodeProfileSpec, info: dict[str, str]) -> dict[str, str]:
    """Return the template's labels over the kubelet's own; the hostname is a node's.

    Source: pkg/kubelet/kubelet_node_status_windows.go, getOSSpecificLabels.
    """
    system = {"arch": info["architecture"], "os": info["operatingSystem"]}
    own = {
        f"{prefix}kubernetes.io/{key}": system[key] for prefix in ("beta.", "") for key in system
    }
    if info["operatingSystem"] == node_model.WINDOWS:
        own[WINDOWS_BUILD_LABEL] = ".".join(info["kernelVersion"].split(".")[:3])
    labels = own | spec.template.metadata.labels
    labels.pop(HOSTNAME_LABEL, None)
    return dict(sorted(labels.items()))


def _annotations(spec: NodeProfileSpec) -> dict[str, str]:
    given = spec.template.metadata.annotations
    kept = {key: value for key, value in given.items() if key not in PASTED_ANNOTATIONS}
    return NODE_ANNOTATIONS | kept


def _taints(spec: NodeProfileSpec) -> tuple[Taint, ...]:
    """Return registerWithTaints and the template's taints, each key and effect once.

    Source: kubelet_node_status.go, initialNode.
    """
    taints: dict[tuple[str, str], Taint] = {}
    for taint in spec.template.spec.taints:
        if not taint.key.startswith(SERVER_TAINT_PREFIXES):
            taints[taint.key, taint.effect] = taint.compiled()
    for own in spec.kubelet_configuration.register_with_taints:
        taints[own.key, own.effect] = own.compiled()
    if spec.cloud_provider:
        key, _, effect = UNINITIALIZED
        taints[key, effect] = UNINITIALIZED
    return tuple(taints.values())


def _provider_template(spec: NodeProfileSpec) -> str:
    """Return the providerID, unless it lacks a placeholder: then it is one real machine's.

    A fake node under the ID of a real instance would invite its autoscaler to act on that one.
    """
    given = spec.kubelet_configuration.provider_id or spec.template.spec.provider_id
    return given if {"name", "index"} & set(schema.PLACEHOLDER.findall(given)) else ""


def _resources(spec: NodeProfileSpec) -> tuple[dict[str, Quantity], dict[str, Quantity]]:
    """Return capacity and allocatable. Source: pkg/kubelet/nodestatus/setters.go, MachineInfo."""
    configuration = spec.kubelet_configuration
    given = spec.template.status
    offered = {device.resource for device in spec.devices}  # by plugins, once they register
    stated = {name: amount for name, amount in given.capacity.items() if name not in offered}
    capacity = _default_capacity(stated, _os(spec)) | stated
    pods = configuration.max_pods or given.capacity.get("pods", whole_quantity(PODS_MAX)).value
    if configuration.pods_per_core:
        pods = min(pods, configuration.pods_per_core * (capacity["cpu"].milli // 1000))
    capacity["pods"] = whole_quantity(pods)
    reserved = configuration.reserved(capacity)
    allocatable = {
        name: amount.minus(reserved[name]) if name in reserved else amount
        for name, amount in capacity.items()
    }
    for name, amount in capacity.items():
        if name.startswith("hugepages-"):
            allocatable["memory"] = allocatable["memory"].minus(amount)
    hidden = {"pods", *offered}
    stated = {name: each for name, each in given.allocatable.items() if name not in hidden}
    return capacity, allocatable | stated


def _check_reserved_memory(kubelet: KubeletConfiguration, capacity: dict[str, Quantity]) -> None:
    """Source: cm/memorymanager/memory_manager.go, validateReservedMemory."""
    wanted = {
        name: amount.value
        for name, amount in kubelet.reserved(capacity).items()
        if name == "memory" or name.startswith("hugepages-")
    }
    given: dict[str, int] = {}
    for each in kubelet.reserved_memory:
        for name, amount in each.limits.items():
            given[name] = given.get(name, 0) + amount.value
    for name in sorted({"memory", *wanted, *given}):
        has, should = given.get(name, 0), wanted.get(name, 0)
        if has != should:
            raise ValueError(
                f"memoryManagerPolicy: Static: reservedMemory has {has} bytes of {name}, but "
                f"kubeReserved, systemReserved and evictionHard keep {should}"
            )
    if not given.get("memory"):
        raise ValueError("memoryManagerPolicy: Static: reservedMemory names no memory")


def _default_capacity(given: dict[str, Quantity], system: str) -> dict[str, Quantity]:
    """Return what a machine has that its profile does not mention. Windows has no huge pages."""
    defaults = {name: QUANTITIES[name] for name in CAPACITY_DEFAULT}
    if system != node_model.WINDOWS and not any(name.startswith("hugepages-") for name in given):
        defaults |= {name: QUANTITIES[name] for name in HUGE_PAGES_DEFAULT}
    return defaults


def _runtime_features(
    spec: NodeProfileSpec, info: dict[str, str]
) -> tuple[tuple[node_model.RuntimeHandler, ...], bool | None]:
    """Return runtime handlers and supplementalGroupsPolicy: as given, else as containerd 2 does."""
    status = spec.template.status
    name, _, version = info["containerRuntimeVersion"].partition("://")
    # What runc can do, containerd finds out; runhcs of Windows does not say it.
    is_linux = info["operatingSystem"] != node_model.WINDOWS
    modern = is_linux and name == "containerd" and not version.startswith("1.")
    handlers = status.runtime_handlers
    if handlers is None:
        compiled = [
            node_model.RuntimeHandler(each, modern, modern)
            for each in ("", "runc" if is_linux else "runhcs-wcow-process")
        ]
    else:
        compiled = [
            node_model.RuntimeHandler(
                each.name, each.features.recursive_read_only_mounts, each.features.user_namespaces
            )
            for each in handlers
        ]
    policy = status.features.supplemental_groups_policy if status.features else modern or None
    return tuple(sorted(compiled)), policy
