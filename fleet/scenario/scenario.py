"""The schema of a scenario and of what it puts into a cluster; errors name file, line and path.

Random faults of a phase are drawn: the same seed makes the same ones at the same times.
"""

import copy
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, cast

import yaml
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from fleet.clock import NS_PER_S, Draws
from fleet.errors import UsageError
from fleet.faults.fault import FAULTS, FaultSpec, FaultType
from fleet.profile.loader import file_of, is_path, read_text, schema_of, shipped_directory
from fleet.profile.schema import DnsLabel, DurationNs, Metadata, Spec, explain
from fleet.profile.settings import StartMode
from fleet.profile.yaml_text import YAMLTextError, read_document, read_documents
from fleet.quantity import format_duration
from fleet.report.service_levels import ExpectationSpec

RATE = 10.0
LIFETIME_NS = 30 * NS_PER_S
COUNT_MAX = 100_000
RATE_MAX = 1_000.0
PODS_PER_NODE_MAX = 1_000
FILE_BYTES_MAX = 1 << 20

Manifest = dict[str, object]
Rate = Annotated[float, Field(gt=0, le=RATE_MAX)]


class ManifestSpec(Spec):
    """Which objects: those of a file next to the scenario's, or one that is written out."""

    file: str = ""
    manifest: Manifest | None = None
    pod_templates: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Where custom resources have pod templates, such as `spec.workers.*.template`."""

    @model_validator(mode="after")
    def _is_one(self) -> "ManifestSpec":
        if bool(self.file) is (self.manifest is not None):
            raise ValueError("needs a file or a manifest, one of both")
        if self.manifest is not None:
            check(self.manifest)
        return self

    def manifests(self, origin: Path) -> list[Manifest]:
        """Return the objects. Raises UsageError that names the file."""
        if self.manifest is not None:
            return [self.manifest]
        path = origin.parent / self.file
        text = read_text(path, FILE_BYTES_MAX)
        try:
            found = cast(
                "list[Manifest]", [each for each in read_documents(text) if each is not None]
            )
        except YAMLTextError as error:
            raise UsageError(f"{path}{error.where}: is not YAML: {error.problem}") from error
        for number, each in enumerate(found, start=1):
            try:
                check(each)
            except ValueError as error:
                raise UsageError(f"{path}: document {number}: {error}") from error
        if not found:
            raise UsageError(f"{path}: has no object")
        return found


class ApplySpec(ManifestSpec):
    """Objects that are created once; a later phase changes those of the same name.

    With `pods_per_node` there are as many copies as give each node so many pods on average.
    """

    count: Annotated[int, Field(ge=1, le=COUNT_MAX)] | None = None
    pods_per_node: Annotated[int, Field(ge=1, le=PODS_PER_NODE_MAX)] | None = None
    rate: Rate = RATE  # of each second
    at_ns: DurationNs = 0  # since the phase began

    @model_validator(mode="after")
    def _is_one_number(self) -> "ApplySpec":
        if self.count is not None and self.pods_per_node is not None:
            raise ValueError("takes a count or podsPerNode, one of both")
        return self

    def manifests(self, origin: Path) -> list[Manifest]:
        """Return the objects. Raises UsageError that names the file."""
        found = super().manifests(origin)
        if self.pods_per_node is not None and not any(map(pods_of, found)):
            raise UsageError(f"{origin}: podsPerNode: these objects do not say how many pods")
        return found

    def copies(self, manifests: list[Manifest], nodes: int) -> int:
        if self.pods_per_node is None:
            return self.count or 1
        return math.ceil(self.pods_per_node * nodes / sum(map(pods_of, manifests)))


class ChurnSpec(ManifestSpec):
    """Objects that are created at a rate as long as the phase lasts, and deleted after a while."""

    rate: Rate | None = None
    rate_per_node: Rate | None = None
    lifetime_ns: DurationNs = LIFETIME_NS

    @model_validator(mode="after")
    def _is_one_rate(self) -> "ChurnSpec":
        if self.rate is not None and self.rate_per_node is not None:
            raise ValueError("takes a rate or ratePerNode, one of both")
        return self

    def per_second(self, nodes: int) -> float:
        if self.rate_per_node is None:
            return self.rate or RATE
        return min(self.rate_per_node * nodes, RATE_MAX)

    def at_a_time(self, nodes: int, phase_ns: int) -> float:
        """Return how many there are at a time."""
        return self.per_second(nodes) * min(self.lifetime_ns, phase_ns) / NS_PER_S


class Named(NamedTuple):
    """One object to be: its manifest, and the name that it gets."""

    manifest: Manifest
    name: str

    def document(self) -> Manifest:
        """Return the object as it is sent, a copy."""
        made = copy.deepcopy(self.manifest)
        metadata_of(made)["name"] = self.name
        return made


def check(manifest: object) -> None:
    """Raise ValueError if something is no object that a scenario may create."""
    if not isinstance(manifest, dict):
        raise ValueError("is not an object of the API")  # noqa: TRY004 - of a file
    for key in ("apiVersion", "kind"):
        if not isinstance(manifest.get(key), str):
            raise ValueError(f"{key} is required")  # noqa: TRY004
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise ValueError("metadata.name is required")  # noqa: TRY004
    if manifest["kind"] == "Node":
        raise ValueError("Nodes are those of nodePools; no manifest makes one")


def metadata_of(manifest: Manifest) -> dict[str, object]:
    """Return the metadata of an object that `check` has seen."""
    metadata = manifest["metadata"]
    assert isinstance(metadata, dict), metadata
    return metadata


def named(manifests: list[Manifest], number: int, *, is_only: bool) -> list[Named]:
    """Return the objects of the number-th copy of some manifests; the only one keeps its name."""
    end = "" if is_only else f"-{number:05d}"
    return [Named(each, f"{metadata_of(each)['name']}{end}") for each in manifests]


def pods_of(manifest: Manifest) -> int:
    """Return how many pods an object stands for, 0 if that depends on other things."""
    if manifest["kind"] == "Pod":
        return 1
    spec = manifest.get("spec")
    if manifest["kind"] in {"Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"}:
        replicas = spec.get("replicas", 1) if isinstance(spec, dict) else 1
        return replicas if isinstance(replicas, int) else 1
    return 0


def line_of(text: str, path: Sequence[int | str]) -> int:
    """Return the line, from 1, of what a path leads to: of its key, or as far as there is any."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = node.start_mark.line if node is not None else 0
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == part]
            if not found:
                break
            key, node = found[-1]
            line = key.start_mark.line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            if part >= len(node.value):
                break
            node = node.value[part]
            line = node.start_mark.line
        else:
            break
    return int(line) + 1


TIMEOUT_NS = 300 * NS_PER_S
NODES_MAX = 1_000_000
RANDOM_FAULTS_MAX = 10_000


class NodePool(Spec):
    """Nodes of one profile: a shipped name, or a file next to the scenario's."""

    name: DnsLabel
    profile: str = "default"
    replicas: Annotated[int, Field(ge=1, le=NODES_MAX)]


class PhaseFault(FaultSpec):
    """A fault of a phase: when it begins, and how long it lasts; to the phase's end by default."""

    at_ns: DurationNs = 0  # since the phase began
    duration_ns: DurationNs | None = None

    @model_validator(mode="after")
    def _ends(self) -> "PhaseFault":
        if self.duration_ns is not None and self.is_instant:
            raise ValueError(f"{self.type.value} is over at once; it takes no duration")
        if self.duration_ns == 0:
            raise ValueError("duration must be above 0s")
        return self

    def fault(self) -> FaultSpec:
        """Return the fault alone."""
        return FaultSpec.model_construct(
            **{name: getattr(self, name) for name in FaultSpec.model_fields}
        )


class RandomFaults(Spec):
    """Faults that come at random while a phase lasts: when, and which of them, the seed decides.

    The times between them are distributed exponentially about `interval`.
    """

    of: Annotated[tuple[FaultSpec, ...], Field(min_length=1)]
    interval_ns: Annotated[DurationNs, Field(ge=NS_PER_S)]
    duration_ns: DurationNs | None = None  # of each; None, and at the latest: to the phase's end

    @model_validator(mode="after")
    def _end(self) -> "RandomFaults":
        if self.duration_ns == 0:
            raise ValueError("duration must be above 0s")
        return self


class Until(Spec):
    """What a phase waits for; that it comes in time is an expectation."""

    condition: Literal["NodesReady", "PodsReady"]
    timeout_ns: DurationNs = TIMEOUT_NS


class PhaseSpec(Spec):
    """A part of the run. With `duration` and `until` both, it waits after its duration.

    A phase of `preparation` belongs to the bring-up: service levels are taken from what follows.
    """

    name: DnsLabel
    preparation: bool = False
    duration_ns: DurationNs = 0
    faults: tuple[PhaseFault, ...] = ()
    random_faults: tuple[RandomFaults, ...] = ()
    apply: tuple[ApplySpec, ...] = ()
    churn: tuple[ChurnSpec, ...] = ()
    until: Until | None = None

    @model_validator(mode="after")
    def _ends(self) -> "PhaseSpec":
        if not self.duration_ns and self.until is None:
            raise ValueError("needs a duration, for example duration: 1m, or an until")
        for fault in self.faults:
            if fault.at_ns and fault.at_ns >= self.duration_ns:
                at, ends = format_duration(fault.at_ns), format_duration(self.duration_ns)
                raise ValueError(f"a fault at {at} is not within the duration of the phase, {ends}")
        if self.churn and not self.duration_ns:
            raise ValueError("churn needs a duration of the phase, for example duration: 1m")
        for each in self.random_faults:
            if not self.duration_ns:
                raise ValueError("randomFaults need a duration of the phase, such as duration: 5m")
            if self.duration_ns / each.interval_ns > RANDOM_FAULTS_MAX:
                raise ValueError(f"randomFaults: are over {RANDOM_FAULTS_MAX}: a longer interval")
        return self

    @property
    def all_faults(self) -> tuple[FaultSpec, ...]:
        return (*self.faults, *(fault for each in self.random_faults for fault in each.of))


class ScenarioSpec(Spec):
    """The nodes, what happens, and what is expected."""

    seed: Annotated[int, Field(ge=0, le=2**64 - 1)] = 0
    start: StartMode = StartMode.SETTLED
    node_pools: Annotated[tuple[NodePool, ...], Field(min_length=1)]
    phases: Annotated[tuple[PhaseSpec, ...], Field(min_length=1)]
    defaults: bool = True  # hold it to the default SLOs as well
    expectations: tuple[ExpectationSpec, ...] = ()

    @property
    def prepared(self) -> int:
        """How many phases prepare the others."""
        return len([*takewhile(lambda each: each.preparation, self.phases)])

    @model_validator(mode="after")
    def _names_are_unique(self) -> "ScenarioSpec":
        for what, each in (("nodePools", self.node_pools), ("phases", self.phases)):
            [(name, count)] = Counter(part.name for part in each).most_common(1)
            if count > 1:
                raise ValueError(f"{what}: {count} are named {name!r}; names are unique")
        is_any = False
        last = self.prepared
        if last == len(self.phases) or any(each.preparation for each in self.phases[last:]):
            raise ValueError("phases: those of preparation come first, and another follows them")
        for phase in self.phases:
            is_any = is_any or bool(phase.apply)
            waits_for_pods = phase.until is not None and phase.until.condition == "PodsReady"
            if waits_for_pods and not is_any:
                raise ValueError(f"phases: {phase.name}: PodsReady is of what was applied: nothing")
        return self


class Scenario(Spec):
    """The document."""

    api_version: Literal["fleet.emulator/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["Scenario"]
    metadata: Metadata
    spec: ScenarioSpec

    @property
    def nodes(self) -> int:
        return sum(pool.replicas for pool in self.spec.node_pools)

    @property
    def _fault_types(self) -> set[FaultType]:
        return {fault.type for each in self.spec.phases for fault in each.all_faults}

    @property
    def cuts_off(self) -> bool:
        """Whether nodes need connections of their own."""
        return FaultType.PARTITION in self._fault_types

    @property
    def stops_components(self) -> bool:
        """Whether it takes a control plane of the run's own."""
        return any(FAULTS[each].of_control_plane for each in self._fault_types)

    def profiles(self, origin: Path) -> tuple[str, ...]:
        """Return the pools as `--profile` has them; files lie next to the scenario."""
        found = []
        for pool in self.spec.node_pools:
            source = pool.profile
            source = str(origin.parent / source) if is_path(source) else source
            found.append(f"{source}={pool.replicas}")
        return tuple(found)


def shipped() -> dict[str, Path]:
    """Return the scenarios that come with fleet, by name."""
    return {path.stem: path for path in sorted((shipped_directory() / "scenarios").glob("*.yaml"))}


def json_schema() -> dict[str, object]:
    return schema_of(TypeAdapter(Scenario), "fleet scenarios")


def find(source: str) -> Path:
    """Return the file of a scenario: a shipped name, or a path. Raises UsageError."""
    return file_of("scenario", source, shipped)


def load(path: Path) -> Scenario:
    """Read a scenario. Raises UsageError in one line."""
    return parse(read_text(path, FILE_BYTES_MAX), str(path))


def parse(text: str, origin: str) -> Scenario:
    """Check the one document of a text; `origin` stands in errors."""
    try:
        content = read_document(text)
    except YAMLTextError as error:
        where = f":{error.line}" if error.line else ""
        raise UsageError(f"{origin}{where}: is not one YAML document: {error.problem}") from error
    if not isinstance(content, dict) or content.get("kind") != "Scenario":
        kind = content.get("kind") if isinstance(content, dict) else None
        raise UsageError(f"{origin}: kind: {kind!r} is not 'Scenario'")
    try:
        return Scenario.model_validate(content, by_name=False)
    except ValidationError as error:
        line = line_of(text, error.errors(include_url=False)[0]["loc"])
        raise UsageError(f"{origin}:{line}: {explain(error, Scenario)}") from error


_STREAM_WHEN, _STREAM_WHICH = 0xFA071, 0xFA072


def faults_of(phase: PhaseSpec, number: int, seed: int) -> tuple[PhaseFault, ...]:
    """Return the faults of the phase of this number, those that are drawn behind the others."""
    draws = Draws(seed)
    drawn = (
        each
        for at, random in enumerate(phase.random_faults)
        for each in _drawn(random, phase.duration_ns, number << 16 | at, draws)
    )
    return (*phase.faults, *drawn)


def _drawn(random: RandomFaults, phase_ns: int, owner: int, draws: Draws) -> Iterator[PhaseFault]:
    """Yield faults with exponential times between them, until the phase is over."""
    at_ns = count = 0
    while True:
        share = draws.uniform(owner, _STREAM_WHEN, count)
        at_ns += int(-math.log(1 - share) * random.interval_ns)
        if at_ns >= phase_ns:
            return
        which = int(draws.uniform(owner, _STREAM_WHICH, count) * len(random.of))
        spec, lasts_ns = random.of[which], random.duration_ns
        if spec.is_instant or (lasts_ns is not None and at_ns + lasts_ns >= phase_ns):
            lasts_ns = None
        fields = {name: getattr(spec, name) for name in FaultSpec.model_fields}
        yield PhaseFault.model_construct(**fields, at_ns=at_ns, duration_ns=lasts_ns)
        count += 1
