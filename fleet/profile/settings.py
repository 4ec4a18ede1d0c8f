"""`Settings`: the options of `fleet spawn`, typed, checked once and never changed."""

import enum
import ipaddress
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from fleet.errors import UsageError
from fleet.profile.addresses import PORT_MAX
from fleet.profile.option_types import (
    DEFAULT_PROFILES,
    DEFAULT_STOP_RULES,
    Address,
    BootstrapToken,
    ComponentFlags,
    DurationOption,
    HostNames,
    LabelSelector,
    Profiles,
    ProviderIdOption,
    Rate,
    RunId,
    Shard,
    Shown,
    StatefulSetOption,
    StopIf,
    StopRules,
    rate_text,
)
from fleet.profile.release import checked_kubelet
from fleet.profile.schema import DnsLabel, explain

NODES_MAX = 100_000
"""Slots have five digits."""
NODE_NAME_MAX = 63
"""A node's name is the value of its hostname label."""
SHARD_ROOM = 2_000
"""Indices of a shard whose number of nodes a dashboard decides, if --shard-stride says nothing."""

CSR_ONLY = ("cert_dir", "bootstrap_token", "bootstrap_kubeconfig", "approve_csrs")

NOT_MANAGED = (
    ("fidelity", "light is for nodes that fleet makes"),
    ("watches", "each of these nodes has its own"),
    ("identity", "these nodes cannot be known beforehand"),
    ("shard", "one process serves all that match"),
    ("processes", "one process serves all that match"),
    ("rate", "nodes start when others make them"),
    ("keep", "these Nodes always stay"),
    ("no_taint", "these Nodes keep their taints"),
    ("simulate_csi", "what is on these nodes is not fleet's"),
    ("zone_labels", "these Nodes keep their labels"),
    ("provider_id", "these Nodes keep their providerIDs"),
    ("dashboard", "others say how many nodes there are"),
    ("locust_master", "others say how many nodes there are"),
)
"""Options that do not go with --manage, and why."""


GROUPS = {
    "nodes": "Nodes",
    "identity": "Who the nodes are",
    "kubeconfig": "Cluster",
    "duration_ns": "Run",
    "dashboard": "Locust",
    "processes": "Processes and pods",
    "controlplane_bin": "Local control plane",
}
"""Headings of the options in `--help`, by the first field below each."""


class Fidelity(enum.StrEnum):
    """How much of a real kubelet's traffic there is."""

    KUBELET = "kubelet"
    LIGHT = "light"


class StartMode(enum.StrEnum):
    """How nodes come to be."""

    SETTLED = "settled"
    COLD = "cold"


class Encoding(enum.StrEnum):
    """How objects travel."""

    PROTOBUF = "protobuf"
    JSON = "json"


class IdentityMode(enum.StrEnum):
    """Who the nodes are to the API server."""

    IMPERSONATE = "impersonate"
    CSR = "csr"
    SHARED = "shared"


class WatchMode(enum.StrEnum):
    """Whose the watches are that serve the kubelets."""

    PER_NODE = "per-node"
    SHARED = "shared"


class OutputFormat(enum.StrEnum):
    """How the summary is printed."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


class ServeMode(enum.StrEnum):
    """Where the servers of the kubelets are."""

    AUTO = "auto"  # loopback on a local control plane, else off
    LOOPBACK = "loopback"
    PORTS = "ports"
    OFF = "off"


MANAGED_TOO = (IdentityMode.SHARED, WatchMode.PER_NODE)
"""Of those options, what does."""


class Settings(BaseModel):
    """The options of `fleet spawn`, each declared once: `run.cli_options` makes flags of them.

    A field with a docstring is an option and the docstring its help, in this order. A field with an
    alias has the name of its flag when it is read.
    """

    model_config = ConfigDict(
        defer_build=True,
        frozen=True,
        extra="forbid",
        populate_by_name=True,
        use_attribute_docstrings=True,
    )

    nodes: Annotated[int, Field(ge=1, le=NODES_MAX)] = 100
    """Number of virtual kubelets (default 100, or what the scenario says)."""
    name_prefix: DnsLabel = "fleet"
    """Prefix of the node names: PREFIX-00000, PREFIX-00001 ... (default fleet)."""
    profiles: Annotated[Profiles, Shown("NAME|FILE[=WEIGHT]")] = Field(
        default=DEFAULT_PROFILES, alias="profile"
    )
    """Profile of the nodes: a name from `fleet profiles list` (default: the one named default), or
    a file. Repeat it with weights for a mix: default=9, gpu=1."""
    programs: Annotated[tuple[Path, ...], Shown("FILE")] = ()
    """Python plug-in that defines what programs in containers do."""
    fidelity: Fidelity = Fidelity.KUBELET
    """Send all requests that a kubelet sends (kubelet, default) or the fewest (light)."""
    start: StartMode = StartMode.SETTLED
    """Create nodes that look long established (settled, default), or send every request of a
    starting kubelet (cold)."""
    encoding: Encoding | None = None  # None: what the fidelity has, see `wire_encoding`
    """Encoding of objects (default protobuf; json with --fidelity light)."""
    watches: WatchMode | None = None  # None: see `has_own_watches`
    """Open watches per node, or share a few among all nodes (default per-node; shared with
    --fidelity light)."""
    rate: Annotated[Rate, Shown("N|max")] = 0.0  # 0: as the server takes them; inf: all at once
    """Nodes to start per second, or max for all at once (default: what the API server sustains)."""
    no_agents: bool = False
    """Run no node agents, such as the kube-proxy of the default profile."""
    simulate_csi: bool = False
    """Simulate the CSI driver csi.fleet.emulator and its controller."""
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    """Seed for all random choices, so that a run can be repeated (default 0)."""
    serve: ServeMode = ServeMode.AUTO
    """Where kubelets serve logs, exec and metrics: an address 127.x per node (loopback), a port per
    node (ports), nowhere (off). The default auto is loopback on a local control plane, else off."""
    serve_at: Annotated[Address, Shown("ADDRESS:PORT")] = ""
    """Address of the first node with --serve ports (the next nodes have the next ports)."""
    identity: IdentityMode = IdentityMode.IMPERSONATE
    """How nodes authenticate: impersonate each node with your credential (default), csr (a client
    certificate per node), or shared (all as you)."""
    cert_dir: Annotated[Path | None, Shown(variable="FLEET_CERT_DIR")] = None
    """With --identity csr: directory that keeps the keys and certificates of the nodes."""
    bootstrap_token: Annotated[BootstrapToken, Shown("TOKEN", variable="FLEET_BOOTSTRAP_TOKEN")] = (
        SecretStr("")
    )
    """With --identity csr: token to request the first certificate with."""
    bootstrap_kubeconfig: Path | None = None
    """With --identity csr: kubeconfig that has such a token."""
    approve_csrs: bool = False
    """With --identity csr: approve the certificate requests of the nodes."""
    kubeconfig: Path | None = None
    """Use the cluster of this kubeconfig."""
    context: str = ""
    """Use the cluster of this kubeconfig context."""
    in_cluster: bool = False
    """Use the cluster that this pod runs in, with its service account."""
    confirm_cluster: Annotated[str, Shown("CONTEXT|UID")] = ""
    """Load this existing cluster without a prompt."""
    shared: Annotated[bool | None, Shown(is_hidden=True)] = None
    """Of a process of a run: whether the cluster is shared, as the first process found."""
    no_taint: bool = False
    """Set no taint, so that any pod may run on the nodes. For dedicated clusters only."""
    zone_labels: bool = False
    """Set zone labels also in an existing cluster."""
    provider_id: Annotated[ProviderIdOption, Shown("none|fleet|TEMPLATE")] = ""
    """providerID of the nodes: none, fleet (fleet://ZONE/NAME), or a template such as
    aws:///{{zone}}/{{name}} (default: as in the profile)."""
    kubelet_version: Annotated[str, AfterValidator(checked_kubelet), Shown("VERSION")] = ""
    """Version of the kubelets, e.g. v1.35.4: up to three minors older than the API server
    (default: that of the API server, or as in the profile)."""
    manage: Annotated[LabelSelector, Shown("SELECTOR")] = ""
    """Serve existing Nodes with these labels, at most --nodes, e.g. those that an autoscaler
    creates. On a shared cluster they also need the label fleet.emulator/managed=true."""
    # It must stand on the command line of each run.
    real_nodes: Annotated[bool, Shown(variable=None)] = False
    """Let the scenario's pods run on any node of a shared cluster (default: on fleet's only)."""
    duration_ns: DurationOption | None = Field(default=None, alias="duration")  # None: until Ctrl-C
    """End this long after all nodes are Ready, e.g. 90s or 5m (default: at Ctrl-C)."""
    until_ready: bool = False
    """End as soon as all nodes are Ready."""
    dry_run: Annotated[bool, Shown(variable=None)] = False
    """Print the plan of the run, and start nothing."""
    stop_if: Annotated[StopIf | None, Shown("RULES")] = None  # None: see `stop_rules`
    """End the run when the API server is unhealthy: readyz[:DURATION], errors[:SHARE[:DURATION]],
    or never (default: readyz:30s,errors:20%:30s on a shared cluster, else never)."""
    keep: bool = False
    """Leave the nodes in the cluster at the end; `fleet clean` removes them."""
    kubeconfig_out: Path | None = None
    """Write a kubeconfig of the cluster to this file."""
    # $FLEET_RUN_DIR names the run of a COMMAND.
    run_dir: Annotated[Path | None, Shown(variable=None)] = None
    """Directory for summary, time series and report (default runs/<id>)."""
    slo: Path | None = None
    """File of SLOs to judge the run by (default: SIG Scalability's, and fleet's own)."""
    no_report: bool = False
    """Write no report.html at the end."""
    title: Annotated[str, Shown("TEXT")] = ""
    """The title of the report (default: the run's id), such as "1.37 sizing, etcd on NVMe"."""
    quiet: bool = False
    """Show no progress on stderr, only what needs attention."""
    output: OutputFormat = OutputFormat.TEXT
    """Format of the summary (default text)."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0  # 0: none
    """Port for Prometheus metrics of fleet (default none)."""
    metrics_host: str = "127.0.0.1"
    """Address for these metrics (default 127.0.0.1)."""
    story: Annotated[tuple[str, ...], Shown("NODE")] = ()
    """Keep the last inputs and requests of this node, to report a bug."""
    dashboard: bool = False
    """Show and control the fleet in Locust's web UI."""
    dashboard_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the dashboard (default: a free one)."""
    dashboard_hosts: Annotated[HostNames, Shown("NAME")] = Field(default=(), alias="dashboard_host")
    """Host name that browsers use for the dashboard, other than localhost."""
    load: Annotated[tuple[Path, ...], Shown("FILE")] = ()
    """Locustfile of API users to run next to the nodes, or the shipped api_users."""
    api_users: Annotated[int, Field(ge=0)] = 0
    """Number of API users."""
    load_cluster_role: Annotated[str, Shown("NAME")] = ""
    """ClusterRole of the API users (default: the least rights for api_users)."""
    max_nodes: Annotated[int, Field(ge=0, le=NODES_MAX)] = 0  # 0: `nodes`; see `most`
    """Largest number of nodes that the dashboard or fleet scale may ask for (default --nodes)."""
    locust_master: Annotated[Address, Shown("HOST:PORT")] = ""
    """Host the nodes that this Locust master asks for."""
    on_master_quit: Literal["exit", "hold"] = "exit"
    """When the master ends, remove the nodes and exit (exit, default), or keep them for the next
    master (hold)."""
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of processes that share the nodes (default 1)."""
    shard: Annotated[Shard, Shown("N|hostname")] = None  # None: one process alone
    """Use the node names PREFIX-N-00000 ...; hostname takes N from the end of the host name."""
    shard_stride: Annotated[int, Field(ge=0)] = 0  # 0: see `stride`
    """Largest number of nodes in a shard, the same for all shards."""
    nodes_total: Annotated[int, Field(ge=0)] = 0  # 0: each shard has `nodes`
    """Number of nodes in all shards; the last shard has the rest."""
    run_id: RunId = ""  # empty: a new one
    """Name of the run, which several shards may share (default: a new name)."""
    holder: str = ""  # its successor waits for it
    """Identity of this process among the shards, e.g. the UID of its pod."""
    record: Literal["files", "cluster"] | None = None  # see `keeps_records`
    """Where the record of this shard goes that fleet report adds up: files of the run directory, or
    also a ConfigMap of the cluster (cluster, default with --shard)."""
    statefulset: Annotated[StatefulSetOption, Shown("NAMESPACE/NAME")] = None
    """StatefulSet of this pod: SIGTERM keeps the nodes if it will start this shard again."""
    # $FLEET_CONTROLPLANE_BIN is one place of several.
    controlplane_bin: Annotated[Path | None, Shown(variable=None)] = None
    """Directory of the programs (default: from PATH or the cache, else built once)."""
    kubernetes_version: Annotated[str, Shown("MINOR")] = ""
    """Minor of Kubernetes to run: 1.34 to 1.37 (default: 1.37), built on first use."""
    fsync: bool = False
    """Let etcd wait for the disk, as in production."""
    audit_log: Path | None = None
    """Write the API server's audit log to this file."""
    etcd_flags: ComponentFlags = Field(default=(), alias="etcd_flag")
    """Flag for etcd, e.g. snapshot-count=10000."""
    apiserver_flags: ComponentFlags = Field(default=(), alias="apiserver_flag")
    """Flag for kube-apiserver, e.g. max-requests-inflight=800."""
    scheduler_flags: ComponentFlags = Field(default=(), alias="scheduler_flag")
    """Flag for kube-scheduler, e.g. v=4."""
    controller_manager_flags: ComponentFlags = Field(default=(), alias="controller_manager_flag")
    """Flag for kube-controller-manager, e.g. node-eviction-rate=1."""
    command: tuple[str, ...] = ()  # what stands behind `--`

    @classmethod
    def from_options(cls, **options: object) -> Self:
        """Read options as click names them; None and () are absent. UsageError names the flag."""
        given = {key: value for key, value in options.items() if value is not None and value != ()}
        try:
            return cls.model_validate(given).of_total()
        except ValidationError as error:
            field = str(error.errors()[0]["loc"][0]) if error.errors()[0]["loc"] else ""
            text = explain(error, cls)
            if field:
                text = f"{flag_of(field)}: {text.removeprefix(field).lstrip(': ')}"
            raise UsageError(text) from error

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self._check_managed()
        name = self.node_name(self.most - 1)
        if len(name) > NODE_NAME_MAX:
            over = len(name) - NODE_NAME_MAX
            raise ValueError(
                f"--name-prefix: {name!r} is over {NODE_NAME_MAX} characters; "
                f"shorten the prefix by {over}"
            )
        if self.shard is None and (self.statefulset or self.nodes_total):
            raise ValueError("--statefulset and --nodes-total need a --shard")
        if self.statefulset and not self.run_id:
            raise ValueError("--statefulset: its pods are of one run, name it with --run-id")
        if self.in_cluster and (self.kubeconfig or self.context):
            raise ValueError("--in-cluster excludes --kubeconfig and --context")
        self._check_end()
        self._check_dashboard()
        self._check_certificates()
        self._check_serving()
        if "metrics_host" in self.model_fields_set and not self.metrics_port:
            raise ValueError("--metrics-host needs --metrics-port")
        if self.names_cluster:
            for flag in self.local_only:
                raise ValueError(f"{flag} is for the local control plane, not for a cluster")
        return self

    def _check_end(self) -> None:
        if self.command and (self.until_ready or self.duration_ns is not None):
            raise ValueError("a command ends the run itself: drop --until-ready and --duration")
        if self.duration_ns == 0:
            raise ValueError("--duration: 0s leaves no time; --until-ready ends at Ready")
        if self.until_ready and self.duration_ns is not None:
            raise ValueError(
                "--until-ready excludes --duration: drop one, the run ends either when all nodes "
                "are Ready or this long after that"
            )
        if "on_master_quit" in self.model_fields_set and not self.locust_master:
            raise ValueError("--on-master-quit needs --locust-master")

    def stated(self, fields: Iterable[str]) -> dict[str, object]:
        """Return those of some fields that do not have their defaults, with their values."""
        values = {name: getattr(self, name) for name in fields}
        known = type(self).model_fields
        return {name: each for name, each in values.items() if each != known[name].default}

    def _check_managed(self) -> None:
        stated = self.stated(field for field, _ in NOT_MANAGED)
        for field, why in NOT_MANAGED if self.manage else ():
            value = stated.get(field)
            if field in stated and not any(value is each for each in MANAGED_TOO):
                raise ValueError(f"--manage excludes {flag_of(field)} {value}: {why}")

    def _check_serving(self) -> None:
        if (self.serve is ServeMode.PORTS) is not bool(self.serve_at):
            raise ValueError("--serve-at ADDRESS:PORT goes with --serve ports")
        if self.serve_at:
            address, port = self.serve_address
            try:
                ipaddress.ip_address(address)
            except ValueError:
                raise ValueError(f"--serve-at: {address!r} is not an IP address") from None
            if port + self.most - 1 > PORT_MAX:
                raise ValueError(f"--serve-at: {self.most} ports from {port} on are too many")

    def _check_certificates(self) -> None:
        if self.identity is not IdentityMode.CSR:
            for field in CSR_ONLY:
                if getattr(self, field):
                    raise ValueError(f"{flag_of(field)} is for --identity csr")
            return
        if self.fidelity is Fidelity.LIGHT:
            raise ValueError(
                "--identity csr needs --fidelity kubelet: the connections of light are shared"
            )
        if self.bootstrap_token and self.bootstrap_kubeconfig:
            raise ValueError("--bootstrap-token excludes --bootstrap-kubeconfig")
        if self.bootstrap_kubeconfig and not self.bootstrap_kubeconfig.is_file():
            raise ValueError(f"--bootstrap-kubeconfig {self.bootstrap_kubeconfig}: no such file")
        if self.names_cluster and not (self.bootstrap_token or self.bootstrap_kubeconfig):
            raise ValueError(
                "--identity csr needs --bootstrap-token or --bootstrap-kubeconfig on a cluster "
                "that is not fleet's own"
            )

    def _check_dashboard(self) -> None:
        if self.is_on_dashboard and (
            self.command or self.until_ready or self.duration_ns is not None
        ):
            raise ValueError(
                "the dashboard says when the run ends: drop -- COMMAND, --until-ready, --duration"
            )
        if self.most < self.nodes:
            raise ValueError(f"--max-nodes: {self.most} is less than the {self.nodes} of --nodes")
        if self.shard_stride and self.shard_stride < self.most // self.processes:
            raise ValueError(f"--shard-stride: a shard has {self.most // self.processes} nodes")
        if self.processes > self.nodes:
            few = f"{self.processes} processes for {self.nodes} nodes"
            raise ValueError(f"--processes: {few}; each process needs at least one")
        if self.dashboard and self.locust_master:
            raise ValueError("--dashboard starts a master of its own: drop --locust-master")
        if self.load_cluster_role and not self.load:
            raise ValueError("--load-cluster-role is for the users of a --load")
        if not self.dashboard and (
            self.load or self.api_users or self.dashboard_port or self.dashboard_hosts
        ):
            raise ValueError(
                "--load, --api-users, --dashboard-port and --dashboard-host need --dashboard"
            )

    @property
    def makes_settled(self) -> bool:
        """Whether a Node is complete when it is created; in light it always is."""
        is_quick = self.start is StartMode.SETTLED or self.fidelity is Fidelity.LIGHT
        return is_quick and not self.manage

    @property
    def has_own_watches(self) -> bool:
        default = WatchMode.SHARED if self.fidelity is Fidelity.LIGHT else WatchMode.PER_NODE
        return (self.watches or default) is WatchMode.PER_NODE

    @property
    def serve_address(self) -> tuple[str, int]:
        """Address of the servers of all kubelets, and the port of the first."""
        address, _, port = self.serve_at.rpartition(":")
        return address.strip("[]"), int(port or 0)

    @property
    def is_served(self) -> bool:
        """Whether the kubelets have servers on a cluster that was named."""
        return self.serve not in {ServeMode.AUTO, ServeMode.OFF}

    @property
    def local_only(self) -> list[str]:
        """The flags that were given and say how a local control plane is started."""
        names = list(type(self).model_fields)
        of_plane = names[names.index("controlplane_bin") : names.index("command")]
        return [flag_of(name) for name in of_plane if getattr(self, name)]

    @property
    def is_on_dashboard(self) -> bool:
        """Whether a Locust master decides how many nodes there are."""
        return self.dashboard or bool(self.locust_master)

    @property
    def locust_address(self) -> tuple[str, int]:
        """Host and port of the master that runs already."""
        host, _, port = self.locust_master.rpartition(":")
        return host, int(port or 0)

    def stop_rules(self, *, is_shared: bool) -> StopRules:
        """Return when the run ends because the API server is sick."""
        if self.stop_if is not None:
            return self.stop_if
        return DEFAULT_STOP_RULES if is_shared else StopRules()

    @property
    def pace(self) -> str:
        """Return how nodes are started, in a word."""
        if not self.rate:
            return "adaptive"
        return rate_text(self.rate) + ("/s" if self.rate < math.inf else "")

    def share(self, number: int) -> Self:
        """Return the settings of one of `processes` processes: its shard and its nodes.

        Source: docs/explain/design.md, scale-out: shard = ordinal x processes + number.
        """
        least = math.ceil(self.most / self.processes)
        shard = (self.shard or 0) * self.processes + number
        return self.model_copy(
            update={
                "nodes": self.part(self.nodes, number),
                "max_nodes": self.part(self.max_nodes, number),
                "shard": shard,
                "shard_stride": self.shard_stride or self._stride(least),
                "rate": self.rate / self.processes,
            }
        )

    def shares(self) -> list[Self]:
        """Return the settings of each process."""
        if self.processes == 1:
            return [self]
        return [self.share(number) for number in range(self.processes)]

    def part(self, count: int, number: int) -> int:
        """Return what one of the processes has of so many."""
        return count // self.processes + (number < count % self.processes)

    def of_total(self) -> Self:
        """Return the settings of a shard that takes what the shards before it leave of the total.

        One that was added beyond the total, by scaling its StatefulSet, has as many as the others.
        """
        left = self.nodes_total - (self.shard or 0) * self.nodes
        if not 0 < left < self.nodes:
            return self
        stride = self.shard_stride or self._stride(math.ceil(self.most / self.processes))
        nodes = max(left, self.processes)
        return self.model_copy(update={"nodes": nodes, "shard_stride": stride})

    @property
    def shards(self) -> range | None:
        """Return the shards of all processes of this run's part; None for a run of its own."""
        if self.shard is None:
            return None
        return range(self.shard * self.processes, (self.shard + 1) * self.processes)

    @property
    def follows(self) -> bool:
        """Whether another shard leads this run."""
        return bool(self.shard and self.run_id)

    @property
    def nodes_of_run(self) -> int:
        """How many nodes all shards of the run have, as far as this process knows."""
        return self.nodes_total or self.nodes

    @property
    def keeps_records(self) -> bool:
        return self.record == "cluster" if self.record else self.shard is not None

    @property
    def shards_wanted(self) -> int:
        """How many shards the run has, 0 if this process does not know."""
        if self.shard is None:
            return self.processes
        return math.ceil(self.nodes_total / self.nodes) * self.processes

    @property
    def most(self) -> int:
        """How many nodes there may ever be: what is confirmed, and what there must be room for."""
        return self.max_nodes or self.nodes

    @property
    def stride(self) -> int:
        """How many indices a shard has: those behind are the next one's."""
        return self.shard_stride or self._stride(self.most)

    def _stride(self, nodes: int) -> int:
        return max(nodes, SHARD_ROOM) if self.is_on_dashboard else nodes

    @property
    def wire_encoding(self) -> Encoding:
        """How objects travel: in fidelity kubelet as with real kubelets, in light the cheap way."""
        if self.encoding is not None:
            return self.encoding
        return Encoding.PROTOBUF if self.fidelity is Fidelity.KUBELET else Encoding.JSON

    @property
    def names_cluster(self) -> bool:
        """Whether the user named a cluster; without, the control plane is a local one."""
        return bool(self.kubeconfig or self.context or self.in_cluster)

    def node_name(self, slot: int) -> str:
        """Return the name of a slot of this process."""
        if self.shard is None:
            return f"{self.name_prefix}-{slot:05d}"
        return f"{self.name_prefix}-{self.shard:04d}-{slot:05d}"

    @property
    def lease_prefix(self) -> str:
        """Return what the names of this process's nodes begin with; its run's Lease is of it."""
        return self.node_name(0).rpartition("-")[0]

    @property
    def end_names(self) -> tuple[str, ...]:
        """The names of the first and the last node, of all processes."""
        shares = self.shares()
        first, last = shares[0].node_name(0), shares[-1].node_name(shares[-1].most - 1)
        return tuple(dict.fromkeys((first, last)))

    def node_index(self, slot: int) -> int:
        """Return the index of a slot in the whole fleet, for `NodeModel.identity`.

        Distinct over all shards as long as each of them has the same `stride`.
        """
        return (self.shard * self.stride if self.shard else 0) + slot

    def slot_of(self, name: str) -> int | None:
        """Return the slot whose name it is; None if no slot of this process has it."""
        digits = name.rpartition("-")[2]
        is_ours = digits.isdecimal() and self.node_name(int(digits)) == name
        return int(digits) if is_ours else None

    def node_names(self) -> Iterator[str]:
        """Yield the names of all nodes that this process may have, by slot."""
        return map(self.node_name, range(self.most))


def is_absent(value: object) -> bool:
    """Return whether an option was not given; 0 was."""
    return value is None or value is False or value in ((), "")


def flags_of(given: Mapping[str, object]) -> list[str]:
    """Return the arguments of a command line that give fields or options these values."""
    return [
        flag_of(name) if each is True else f"{flag_of(name)}={each}"
        for name, value in given.items()
        if not is_absent(value)
        for each in (value if isinstance(value, tuple) else (value,))
    ]


def flag_of(field: str) -> str:
    by_name = Settings.model_fields.get(field)
    return "--" + ((by_name.alias if by_name else None) or field).replace("_", "-")
