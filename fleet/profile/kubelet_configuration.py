"""KubeletConfiguration, and the image credential providers of a kubelet's configuration.

The keys that fleet acts on are typed, the others have no effect. Every node of a profile refers to
the one that was read; no model copies what a key says. Defaults are upstream's. Of a credential
provider only what the API server sees is emulated: the ServiceAccount that is read, and the token
that is asked for.
Source: pkg/kubelet/apis/config/v1beta1/defaults.go; pkg/kubelet/apis/config/types.go,
CredentialProvider, ServiceAccountTokenAttributes.
"""

import re
from fnmatch import fnmatchcase
from functools import cached_property
from ipaddress import ip_address
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fleet.clock import NS_PER_S
from fleet.profile.schema import DurationNs, QuantityField, Spec, unknown_key
from fleet.quantity import Quantity, QuantityFormat, parse_quantity, share_of, whole_quantity

CPU_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
MINUTE_NS = 60 * NS_PER_S
STATUS_REPORT_NS = 5 * MINUTE_NS
SYSTEM_CRITICAL_PRIORITY = 2_000_000_000
BURST_DEFAULT = 100  # of kubeAPIBurst and eventBurst, also when they are 0; a QPS of 0 is kept
EVICTION_SIGNALS = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "allocatableMemory.available",
    "pid.available",
)
EVICTION_HARD_DEFAULT = {
    "memory.available": "100Mi",
    "nodefs.available": "10%",
    "nodefs.inodesFree": "5%",
    "imagefs.available": "15%",
    "imagefs.inodesFree": "5%",
}

_OTHER_KEYS = """
    address cgroupDriver cgroupRoot cgroupsPerQOS containerLogMaxFiles containerLogMaxSize
    containerLogMaxWorkers containerLogMonitorInterval containerRuntimeEndpoint contentType
    cpuCFSQuota cpuCFSQuotaPeriod cpuManagerReconcilePeriod enableContentionProfiling
    enableDebugFlagsHandler enableProfilingHandler enableSystemLogHandler enableSystemLogQuery
    failCgroupV1 hairpinMode healthzBindAddress healthzPort httpCheckFrequency
    imagePullCredentialsVerificationPolicy imageServiceEndpoint iptablesDropBit
    iptablesMasqueradeBit kernelMemcgNotification kubeReservedCgroup kubeletCgroups logging
    makeIPTablesUtilChains maxOpenFiles memorySwap memoryThrottlingFactor oomScoreAdj podCIDR
    podLogsDir podPidsLimit preloadedImagesVerificationAllowlist protectKernelDefaults
    qosReserved readOnlyPort registerNode runOnce seccompDefault showHiddenMetricsForVersion
    singleProcessOOMKill staticPodURL staticPodURLHeader streamingConnectionIdleTimeout
    systemCgroups systemReservedCgroup tlsCipherSuites tlsCurvePreferences tlsMinVersion
    topologyManagerPolicyOptions topologyManagerScope tracing userNamespaces volumePluginDir
    volumeStatsAggPeriod
"""
KEYS_WITHOUT_EFFECT = frozenset(_OTHER_KEYS.split())
"""The other keys of upstream's KubeletConfiguration: accepted, without effect."""

Effect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]
Enforced = Literal[
    "pods",
    "system-reserved",
    "system-reserved-compressible",
    "kube-reserved",
    "kube-reserved-compressible",
    "none",
]

TRUE_TEXTS = frozenset(("1", "t", "T", "true", "TRUE", "True"))
ChangeDetection = Literal["Get", "Cache", "Watch"]

Taint = tuple[str, str, str]  # key, value, effect


class EvictionThreshold(NamedTuple):
    """One signal of evictionHard or evictionSoft; `percent` is 0 when `quantity` decides."""

    signal: str
    quantity: Quantity
    percent: float
    grace_ns: int = 0
    reclaim: Quantity = Quantity(0)  # evictionMinimumReclaim, on top once it was met
    reclaim_percent: float = 0.0


class DNSSettings(NamedTuple):
    """What a kubelet makes the DNS settings of its pods of."""

    servers: tuple[str, ...] = ("10.96.0.10",)
    domain: str = "cluster.local"
    resolver_file: str = "/etc/resolv.conf"  # "": pods of the host's DNS look at the node itself
    host_servers: tuple[str, ...] = ("192.0.2.53",)  # these three: what the file says
    host_searches: tuple[str, ...] = ()
    host_options: tuple[str, ...] = ()


class TaintSpec(Spec):
    """Source: core/v1 Taint."""

    key: str
    value: str = ""
    effect: Effect
    time_added: object = None

    def compiled(self) -> Taint:
        return self.key, self.value, self.effect


CRASH_LOOP_MAX_NS = 300 * NS_PER_S


class CrashLoopBackOff(Spec):
    """Source: KubeletConfiguration crashLoopBackOff."""

    max_container_restart_period_ns: DurationNs = CRASH_LOOP_MAX_NS


class AnonymousAuthentication(Spec):
    """Source: KubeletAnonymousAuthentication."""

    enabled: bool = False


class WebhookAuthentication(Spec):
    """Source: KubeletWebhookAuthentication."""

    enabled: bool = True
    cache_ttl_ns: DurationNs = 2 * MINUTE_NS


class X509Authentication(Spec):
    """Accepted, without effect: the cluster says it. Source: KubeletX509Authentication."""

    client_ca_file: str = ""


class Authentication(Spec):
    """Who may ask the server of a kubelet. Source: KubeletAuthentication."""

    anonymous: AnonymousAuthentication = AnonymousAuthentication()
    webhook: WebhookAuthentication = WebhookAuthentication()
    x509: X509Authentication = X509Authentication()


class WebhookAuthorization(Spec):
    """Source: KubeletWebhookAuthorization."""

    cache_authorized_ttl_ns: DurationNs = 5 * MINUTE_NS
    cache_unauthorized_ttl_ns: DurationNs = 30 * NS_PER_S


class Authorization(Spec):
    """What it answers them. Source: KubeletAuthorization."""

    mode: Literal["AlwaysAllow", "Webhook"] = "Webhook"
    webhook: WebhookAuthorization = WebhookAuthorization()


class MemoryReservation(Spec):
    """Memory of a NUMA node that pods are not given. Source: MemoryReservation."""

    numa_node: Annotated[int, Field(ge=0)] = 0
    limits: dict[str, QuantityField] = Field(default_factory=dict)


class ShutdownGracePeriodByPodPriority(Spec):
    """Source: KubeletConfiguration shutdownGracePeriodByPodPriority."""

    priority: int
    shutdown_grace_period_seconds: Annotated[int, Field(ge=0)]


def _threshold(text: object) -> str:
    """Check one eviction threshold: a quantity or a percentage."""
    shown = str(text)
    if shown.endswith("%"):
        try:
            percent = float(shown[:-1])
        except ValueError:
            percent = -1.0
        if not 0 <= percent <= 100:
            raise ValueError(f"{shown!r} is not a percentage from 0% to 100%")
    else:
        parse_quantity(text)
    return shown


def cpus_in(text: str) -> frozenset[int]:
    """Return the CPUs of a list such as 0-3,8. Source: k8s.io/utils/cpuset, Parse."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _cpu_list(text: str) -> str:
    parts = [CPU_RANGE.fullmatch(part) for part in text.split(",")] if text else []
    if not all(part and int(part[1]) <= int(part[2] or part[1]) for part in parts):
        raise ValueError(f"{text!r} is not a list of CPUs such as 0-3,8")
    return text


def _signals(value: object) -> object:
    """Refuse thresholds of signals that do not exist."""
    for signal in value if isinstance(value, dict) else ():
        if signal not in EVICTION_SIGNALS:
            raise ValueError(unknown_key(str(signal), list(EVICTION_SIGNALS)))
    return value


Thresholds = Annotated[
    dict[str, Annotated[str, BeforeValidator(_threshold)]], BeforeValidator(_signals)
]


Address = Annotated[str, AfterValidator(lambda text: str(ip_address(text)))]
"""As Go prints it."""
Limit = Annotated[int, Field(ge=0)]
GoBool = Literal["1", "t", "T", "true", "TRUE", "True", "0", "f", "F", "false", "FALSE", "False"]
"""What Go's strconv.ParseBool reads."""
Burst = Annotated[Limit, AfterValidator(lambda given: given or BURST_DEFAULT)]


def _is_address(text: str) -> str:
    """Check an address, and leave it as it is written."""
    ip_address(text)
    return text


class ResolvConf(Spec):
    """What the file that `kubeletConfiguration.resolvConf` names says on the machines."""

    nameservers: tuple[Annotated[str, AfterValidator(_is_address)], ...] = (
        DNSSettings().host_servers
    )
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def settings(self, kubelet: "KubeletConfiguration") -> DNSSettings:
        """Return what a kubelet makes DNS settings of. Source: dns.go, parseResolvConf."""
        searches = tuple(each.removesuffix(".") for each in self.searches if each != ".")
        return DNSSettings(
            kubelet.cluster_dns,
            kubelet.cluster_domain,
            kubelet.resolv_conf,
            self.nameservers,
            searches,
            self.options,
        )


class KubeletConfiguration(Spec):
    """The kubelet's configuration file, as far as fleet reads it."""

    model_config = Spec.model_config | {"extra": "allow"}

    api_version: Literal["kubelet.config.k8s.io/v1beta1"] = "kubelet.config.k8s.io/v1beta1"
    kind: Literal["KubeletConfiguration"] = "KubeletConfiguration"
    node_status_update_frequency_ns: DurationNs = 10 * NS_PER_S
    node_status_report_frequency_ns: DurationNs | None = None  # see status_report_ns
    node_lease_duration_seconds: Annotated[int, Field(ge=1)] = 40
    node_status_max_images: Annotated[int, Field(ge=-1)] = 50
    sync_frequency_ns: DurationNs = MINUTE_NS
    runtime_request_timeout_ns: DurationNs = 2 * MINUTE_NS
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    enable_server: bool = True
    enable_debugging_handlers: bool = True
    tls_cert_file: str = ""
    tls_private_key_file: str = ""
    authentication: Authentication = Authentication()
    authorization: Authorization = Authorization()
    rotate_certificates: bool = True  # upstream's default is false; kubeadm sets true
    server_tls_bootstrap: bool = False
    max_pods: Annotated[int, Field(ge=1)] | None = None
    pods_per_core: Limit = 0
    serialize_image_pulls: bool = True
    cpu_manager_policy: Literal["none", "static"] = "none"
    cpu_manager_policy_options: dict[str, GoBool] = Field(default_factory=dict)
    memory_manager_policy: Literal["None", "Static"] = "None"
    reserved_system_cpus: Annotated[str, AfterValidator(_cpu_list)] = ""
    reserved_memory: tuple[MemoryReservation, ...] = ()
    fail_swap_on: bool = True
    local_storage_capacity_isolation: bool = True
    enable_controller_attach_detach: bool = True
    topology_manager_policy: Literal["none", "best-effort", "restricted", "single-numa-node"] = (
        "none"
    )
    allowed_unsafe_sysctls: tuple[str, ...] = ()  # names, and prefixes that end with *
    max_parallel_image_pulls: Annotated[int, Field(ge=1)] | None = None
    registry_pull_qps: Limit = 5
    registry_burst: Limit = 10
    image_gc_high_threshold_percent: Annotated[int, Field(ge=0, le=100)] = 85
    image_gc_low_threshold_percent: Annotated[int, Field(ge=0, le=100)] = 80
    image_minimum_gc_age_ns: DurationNs = 2 * MINUTE_NS
    image_maximum_gc_age_ns: DurationNs = 0
    kube_api_qps: Limit = 50
    kube_api_burst: Burst = BURST_DEFAULT
    event_record_qps: Limit = 50
    event_burst: Burst = BURST_DEFAULT
    kube_reserved: dict[str, QuantityField] = Field(default_factory=dict)
    system_reserved: dict[str, QuantityField] = Field(default_factory=dict)
    eviction_hard: Thresholds | None = None
    eviction_soft: Thresholds = Field(default_factory=dict)
    eviction_soft_grace_period: dict[str, DurationNs] = Field(default_factory=dict)
    eviction_pressure_transition_period_ns: DurationNs = 5 * MINUTE_NS
    eviction_max_pod_grace_period_s: Limit = 0
    eviction_minimum_reclaim: Thresholds = Field(default_factory=dict)
    merge_default_eviction_settings: bool = False
    enforce_node_allocatable: tuple[Enforced, ...] = ("pods",)
    register_with_taints: tuple[TaintSpec, ...] = ()
    change_detection: Annotated[
        ChangeDetection, Field(alias="configMapAndSecretChangeDetectionStrategy")
    ] = "Watch"
    feature_gates: dict[str, bool] = Field(default_factory=dict)
    shutdown_grace_period_ns: DurationNs = 0
    shutdown_grace_period_critical_pods_ns: DurationNs = 0
    shutdown_grace_period_by_pod_priority: tuple[ShutdownGracePeriodByPodPriority, ...] = ()
    static_pod_path: str = ""
    file_check_frequency_ns: DurationNs = 20 * NS_PER_S
    crash_loop_back_off: CrashLoopBackOff = CrashLoopBackOff()
    provider_id: str = ""
    cluster_dns: tuple[Address, ...] = DNSSettings().servers
    cluster_domain: str = DNSSettings().domain
    resolv_conf: str = DNSSettings().resolver_file

    @model_validator(mode="after")
    def _is_consistent(self) -> "KubeletConfiguration":
        known = [field.alias or name for name, field in type(self).model_fields.items()]
        for key in self.model_extra or {}:
            if key not in KEYS_WITHOUT_EFFECT:
                raise ValueError(unknown_key(key, [*known, *KEYS_WITHOUT_EFFECT]))
        for signal in self.eviction_soft:
            if signal not in self.eviction_soft_grace_period:
                raise ValueError(f"evictionSoftGracePeriod lacks {signal!r}")
        if not self.node_status_update_frequency_ns:
            raise ValueError("nodeStatusUpdateFrequency must be above 0s")
        if self.max_parallel_image_pulls not in {None, 1} and self.serialize_image_pulls:
            raise ValueError("maxParallelImagePulls above 1 needs serializeImagePulls: false")
        if self.image_gc_low_threshold_percent >= self.image_gc_high_threshold_percent:
            raise ValueError("imageGCLowThresholdPercent must be below imageGCHighThresholdPercent")
        self._check_shutdown()
        if self.cpu_manager_policy == "static" and not self.reserved_cpu_milli:
            raise ValueError(
                "cpuManagerPolicy: static needs CPU in kubeReserved, systemReserved "
                "or reservedSystemCPUs"
            )
        if not self.enable_controller_attach_detach:
            raise ValueError(
                "enableControllerAttachDetach: false is not supported: "
                "nodes of fleet leave volumes to the attach-detach controller"
            )
        return self

    def has_cpu_option(self, name: str) -> bool:
        """Return whether an option of the static CPU policy is on."""
        return self.cpu_manager_policy_options.get(name, "0") in TRUE_TEXTS

    def _check_shutdown(self) -> None:
        """Source: pkg/kubelet/apis/config/validation/validation.go."""
        whole, critical = self.shutdown_grace_period_ns, self.shutdown_grace_period_critical_pods_ns
        if critical > whole:
            raise ValueError("shutdownGracePeriod must be >= shutdownGracePeriodCriticalPods")
        for name, period in (("", whole), ("CriticalPods", critical)):
            if 0 < period < NS_PER_S:
                raise ValueError(f"shutdownGracePeriod{name} must be either zero or >= 1s")
        if self.shutdown_grace_period_by_pod_priority and (whole or critical):
            raise ValueError(
                "shutdownGracePeriodByPodPriority and shutdownGracePeriod exclude each other"
            )

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Return the keys that were written and decide nothing, sorted."""
        return tuple(sorted(self.model_extra or ()))

    @property
    def polls_objects(self) -> bool:
        """Return whether ConfigMaps and Secrets are asked for, not watched."""
        return self.change_detection != "Watch"

    @cached_property
    def shutdown_grace_by_priority(self) -> tuple[tuple[int, int], ...]:
        """Return priority and seconds of each group, lowest first. Source: migrateConfig."""
        given = self.shutdown_grace_period_by_pod_priority
        if given:
            return tuple(
                sorted((each.priority, each.shutdown_grace_period_seconds) for each in given)
            )
        if not self.shutdown_grace_period_ns:
            return ()
        critical = self.shutdown_grace_period_critical_pods_ns
        ordinary = self.shutdown_grace_period_ns - critical
        return (0, ordinary // NS_PER_S), (SYSTEM_CRITICAL_PRIORITY, critical // NS_PER_S)

    @cached_property
    def status_report_ns(self) -> int:
        """Return the report period: as set, else the update period if that is set, else 5 min."""
        if self.node_status_report_frequency_ns:
            return self.node_status_report_frequency_ns
        if "node_status_update_frequency_ns" in self.model_fields_set:
            return self.node_status_update_frequency_ns
        return STATUS_REPORT_NS

    @cached_property
    def static_policies(self) -> tuple[tuple[str, str], ...]:
        """Return the managers that pin Guaranteed pods, each with the name of its policy."""
        policies = (("CPU", self.cpu_manager_policy), ("Memory", self.memory_manager_policy))
        return tuple(each for each in policies if each[1] in {"static", "Static"})

    @cached_property
    def hard_thresholds(self) -> tuple[EvictionThreshold, ...]:
        """Return evictionHard. Source: a set one replaces the defaults, unless they are merged."""
        given = self.eviction_hard
        if given is None:
            given = EVICTION_HARD_DEFAULT
        elif self.merge_default_eviction_settings:
            given = EVICTION_HARD_DEFAULT | given
        return self._compiled(given)

    @cached_property
    def soft_thresholds(self) -> tuple[EvictionThreshold, ...]:
        """Return evictionSoft with its grace periods."""
        return self._compiled(self.eviction_soft, self.eviction_soft_grace_period)

    @cached_property
    def kept(self) -> tuple[dict[str, Quantity], dict[str, Quantity]]:
        """Return kubeReserved and systemReserved; reservedSystemCPUs replaces the CPU of both.

        Source: cmd/kubelet/app/server.go, run.
        """
        kube, system = self.kube_reserved, self.system_reserved
        if self.reserved_system_cpus:
            count = len(cpus_in(self.reserved_system_cpus))
            kube = {name: amount for name, amount in kube.items() if name != "cpu"}
            system = system | {"cpu": whole_quantity(count, QuantityFormat.DECIMAL_SI)}
        return kube, system

    @property
    def reserved_cpu_milli(self) -> int:
        """Return the CPU that is kept from pods, in thousandths."""
        return sum(each["cpu"].milli for each in self.kept if "cpu" in each)

    def pods_memory(self, capacity: Quantity) -> int:
        """Return the memory limit of the cgroup of all pods.

        Source: pkg/kubelet/cm/node_container_manager_linux.go, getNodeAllocatableAbsolute.
        """
        kept = (self.kube_reserved.get("memory"), self.system_reserved.get("memory"))
        return max(capacity.value - sum(each.value for each in kept if each), 0)

    def _compiled(
        self, given: dict[str, str], graces: dict[str, int] | None = None
    ) -> tuple[EvictionThreshold, ...]:
        """Source: pkg/kubelet/eviction/helpers.go, ParseThresholdConfig: 0% and 100% are off."""
        graces = graces or {}
        return tuple(
            EvictionThreshold(
                signal,
                *_amount(text),
                graces.get(signal, 0),
                *_amount(self.eviction_minimum_reclaim.get(signal, "0")),
            )
            for signal, text in sorted(given.items())
            if text not in {"0%", "100%"}
        )

    def reserved(self, capacity: dict[str, Quantity]) -> dict[str, Quantity]:
        """Return what is kept from pods: kubeReserved, systemReserved and hard eviction.

        Source: pkg/kubelet/cm/node_container_manager_linux.go, GetNodeAllocatableReservation.
        """
        total: dict[str, Quantity] = {}
        for part in (*self.kept, self._eviction_reserved(capacity)):
            for resource, amount in part.items():
                before = total.get(resource)
                nano = amount.nano + (before.nano if before else 0)
                total[resource] = Quantity(nano, before.format if before else amount.format)
        return total

    def _eviction_reserved(self, capacity: dict[str, Quantity]) -> dict[str, Quantity]:
        """Return the memory and storage under which pods are evicted.

        Source: pkg/kubelet/cm/node_container_manager.go, hardEvictionReservation.
        """
        resources = {"memory.available": "memory", "nodefs.available": "ephemeral-storage"}
        reserved = {}
        for threshold in self.hard_thresholds:
            resource = resources.get(threshold.signal)
            if resource in capacity:
                amount = threshold.quantity
                if threshold.percent:
                    amount = whole_quantity(share_of(capacity[resource].value, threshold.percent))
                reserved[resource] = amount
        return reserved


def _amount(text: str) -> tuple[Quantity, float]:
    """Return a quantity, or a percentage."""
    if text.endswith("%"):
        return Quantity(0, QuantityFormat.BINARY_SI), float(text[:-1])
    return parse_quantity(text), 0.0


Keys = tuple[Annotated[str, Field(min_length=1)], ...]


class TokenAttributes(Spec):
    """Which token a provider is given."""

    service_account_token_audience: Annotated[str, Field(min_length=1)]
    cache_type: Literal["ServiceAccount", "Token"] = "Token"
    require_service_account: bool = True
    required_service_account_annotation_keys: Keys = ()
    optional_service_account_annotation_keys: Keys = ()


class CredentialProvider(Spec):
    """A plug-in that a kubelet asks for credentials before it pulls an image."""

    name: Annotated[str, Field(min_length=1)]
    match_images: Annotated[Keys, Field(min_length=1)]
    token_attributes: TokenAttributes

    def matches(self, image: str) -> bool:
        """Return whether the provider is asked about an image, by its full name.

        Source: pkg/credentialprovider/keyring.go, URLsMatch.
        """
        return any(_matches(each, image) for each in self.match_images)


def _matches(pattern: str, image: str) -> bool:
    host, _, path = image.partition("/")
    wanted_host, slash, wanted_path = pattern.partition("/")
    name, _, port = host.partition(":")
    wanted_name, _, wanted_port = wanted_host.partition(":")
    parts, wanted_parts = name.split("."), wanted_name.split(".")
    if port != wanted_port or len(parts) != len(wanted_parts):
        return False
    if slash and not path.startswith(wanted_path):
        return False
    return all(map(fnmatchcase, parts, wanted_parts))
