"""Find, read, show and import the documents that users write; build the nodes of a fleet.

A source is the name of a shipped document or a file. What is wrong with one becomes a `UsageError`
of one line that names file, path and allowed values.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from fleet.errors import UsageError
from fleet.profile.addresses import AddressPlan, Serving
from fleet.profile.agent_behavior import AGENTS_MAX, AgentChoice, AgentModel, NodeAgent
from fleet.profile.distribution import Distribution
from fleet.profile.node_model import NodeModel
from fleet.profile.node_profile import NodeProfile
from fleet.profile.option_types import DEFAULT_PROFILES, ProfileChoice, provider_template
from fleet.profile.pod_behavior import DEFAULT_DRIVER, CSIDriver, PodBehavior, PodBehaviorManifest
from fleet.profile.release import check_skew, explain_version
from fleet.profile.schema import API_VERSION, explain
from fleet.profile.settings import Fidelity, Settings
from fleet.profile.yaml_text import YAMLTextError, read_documents
from fleet.quantity import Quantity

DOCUMENT_BYTES_MAX = 4 * 1024 * 1024  # a profile is a page; what is longer is the wrong file

Document = NodeProfile | PodBehaviorManifest | NodeAgent
KINDS: dict[str, type[NodeProfile] | type[PodBehaviorManifest] | type[NodeAgent]] = {
    "NodeProfile": NodeProfile,
    "PodBehavior": PodBehaviorManifest,
    "NodeAgent": NodeAgent,
}
DIRECTORIES = {"workloads": "PodBehavior", "agents": "NodeAgent", "nodes": "NodeProfile"}
"""Where the shipped documents of each kind are."""


class ProfileSummary(NamedTuple):
    """One line of `fleet profiles list`."""

    name: str
    kind: str
    description: str
    path: Path


class NodeMix:
    """The models of a fleet, and which node gets which: by index alone, evenly spread.

    The mix repeats after a period, so a fleet that grows moves no node. Within a period the j-th
    node of a profile with weight w stands at (2j+1)/2w, which keeps every stretch near its share.
    """

    def __init__(self, models: Iterable[NodeModel], weights: Iterable[int]) -> None:
        weights = tuple(weights)
        period = sum(weights)
        places = sorted(
            ((2 * rank + 1) / (2 * weight), at)
            for at, weight in enumerate(weights)
            for rank in range(weight)
        )
        self._pattern = tuple(at for _, at in places)
        assert len(self._pattern) == period, weights
        self.models = tuple(
            replace(model, ordinals=self._ranks(at), ordinals_per_period=weights[at])
            for at, model in enumerate(models)
        )

    def _ranks(self, wanted: int) -> tuple[int, ...]:
        """Count, for every place of the period, the nodes of one profile before it."""
        seen = 0
        ranks = []
        for at in self._pattern:
            ranks.append(seen)
            seen += at == wanted
        return tuple(ranks)

    def model_of(self, index: int) -> NodeModel:
        return self.models[self._pattern[index % len(self._pattern)]]

    def adapt(
        self,
        *,
        zone_labels: bool,
        serving: Callable[[NodeModel], Serving] | None = None,
        address_shift: int = 0,
    ) -> None:
        """Fit every model to the cluster that was found; before any node is made."""
        self.models = tuple(
            model.adapted(
                zone_labels=zone_labels,
                serving=serving(model) if serving is not None else None,
                address_shift=address_shift,
            )
            for model in self.models
        )

    @property
    def warnings(self) -> list[str]:
        """What the profiles say that decides nothing, one line each."""
        found = [
            f"warning: profile {each.name}: kubeletConfiguration: without effect: {', '.join(keys)}"
            for each in self.models
            if (keys := each.kubelet.without_effect)
        ]
        return found + [text for each in self.models for text in each.notices]

    @property
    def agents_per_node(self) -> float:
        """How many agents a node has on average."""
        counts = [sum(agent.share for agent in model.agents) for model in self.models]
        return sum(counts[at] for at in self._pattern) / len(self._pattern)

    def leave_out(self, agent: str) -> None:
        """Let no node have an agent; before any node is made."""
        self.models = tuple(
            replace(model, agents=tuple(each for each in model.agents if each.name != agent))
            for model in self.models
        )

    def choose_version(self, option: str, server_version: str) -> list[str]:
        """Give all kubelets the version that --kubelet-version says; before any node is made.

        Return where kubelets are not as their profiles ask, one line each.
        """
        if option:
            check_skew(option, server_version)
            self.models = tuple(
                replace(model, kubelet_version=option, follows_server=False)
                for model in self.models
            )
        lines = []
        for model in self.models:
            asked = server_version if model.follows_server else model.kubelet_version
            if line := explain_version(asked, server_version):
                lines.append(line if model.follows_server else f"profile {model.name}: {line}")
        self.models = tuple(model.on_server(server_version) for model in self.models)
        return list(dict.fromkeys(lines))

    def give_provider_ids(self, option: str) -> None:
        """Give all nodes the providerIDs that --provider-id says; before any node is made."""
        self.models = tuple(
            replace(model, provider_id=provider_template(option, model.provider_id))
            for model in self.models
        )

    def check_addresses(self, indices_max: int) -> None:
        """Raise UsageError unless every address pool has room for indices below a limit."""
        for model in self.models:
            if indices_max > model.addresses_max:
                pools = ",".join(map(str, model.address_pools))
                raise UsageError(
                    f"profile {model.name}: spec.addressPool: {pools} has room for "
                    f"{model.addresses_max} nodes, {indices_max} are asked for"
                )

    @property
    def address_plan(self) -> AddressPlan:
        """Return which addresses the nodes may have."""
        return AddressPlan(pool for model in self.models for pool in model.address_pools)


def mix_of(settings: Settings) -> NodeMix:
    """Load what the options of a run name."""
    found = load_mix(
        settings.profiles,
        simulate_csi=settings.simulate_csi,
        no_agents=settings.no_agents,
        is_light=settings.fidelity is Fidelity.LIGHT,
    )
    found.give_provider_ids(settings.provider_id)
    return found


def load_mix(
    choices: tuple[ProfileChoice, ...] = DEFAULT_PROFILES,
    *,
    simulate_csi: bool = False,
    no_agents: bool = False,
    is_light: bool = False,
) -> NodeMix:
    """Load what `--profile` named: node profiles by weight, pod behaviours and node agents.

    The NodeProfiles of one source share its weight, each by its own. A source that holds none adds
    its documents to all nodes; without any the nodes are those of `default`. With `simulate_csi` a
    profile that declares no CSI driver has one. With `no_agents` nodes have none of their profile
    or its file, only those of sources of agents; those of light have no optional ones.
    """
    profiles: list[
        tuple[NodeProfile, tuple[PodBehavior, ...], list[NodeAgent], Fraction, Path]
    ] = []
    for_all: list[PodBehavior] = []
    agents_for_all: list[NodeAgent] = []
    for choice in choices:
        found = load_source(choice.source)
        behaviors = [each.compiled() for each in found if isinstance(each, PodBehaviorManifest)]
        agents = [each for each in found if isinstance(each, NodeAgent)]
        nodes = [each for each in found if isinstance(each, NodeProfile)]
        names = [each.metadata.name for each in nodes]
        if len(set(names)) < len(names):
            raise UsageError(f"{choice.source}: two NodeProfiles have one name: {', '.join(names)}")
        directory = path_of(choice.source).parent.resolve()
        all_of_it = sum(each.spec.weight for each in nodes)
        for each in nodes:
            share = Fraction(choice.weight * each.spec.weight, all_of_it)
            profiles.append((each, tuple(behaviors), agents, share, directory))
        if not nodes:
            for_all += behaviors
            agents_for_all += agents
    if not profiles:
        only = load_source(DEFAULT_PROFILES[0].source)[0]
        assert isinstance(only, NodeProfile), only
        profiles.append((only, (), [], Fraction(1), shipped_directory()))
    models = [
        profile.compiled(
            (*own, *for_all),
            _agents_of(
                () if no_agents else profile.spec.agents,
                () if no_agents else agents,
                agents_for_all,
                where=f"profile {profile.metadata.name}",
                is_light=is_light,
            ),
            directory,
        )
        for profile, own, agents, _, directory in profiles
    ]
    if simulate_csi:
        drivers = (CSIDriver(name=DEFAULT_DRIVER),)
        models = [
            each if each.csi_drivers else replace(each, csi_drivers=drivers) for each in models
        ]
    return NodeMix(models, _whole([share for _, _, _, share, _ in profiles]))


def _whole(shares: list[Fraction]) -> list[int]:
    """Return shares as whole weights; what has one profile in each source stays as given."""
    denominator = math.lcm(*(each.denominator for each in shares))
    weights = [int(each * denominator) for each in shares]
    divisor = math.gcd(*weights) if denominator > 1 else 1
    return [each // divisor for each in weights]


def _agents_of(
    choices: tuple[AgentChoice, ...],
    own: Iterable[NodeAgent],
    for_all: Iterable[NodeAgent],
    *,
    where: str,
    is_light: bool,
) -> tuple[AgentModel, ...]:
    """Return the agents of a profile: those that it names, of its file, and of all nodes.

    One that is asked for otherwise is not optional.
    """
    known = {each.metadata.name: each for each in (*for_all, *own)}
    chosen: dict[str, AgentChoice] = {}
    for at, choice in enumerate(choices):
        if choice.name not in known:
            if choice.optional and is_light:
                continue
            known[choice.name] = _shipped_agent(choice.name, f"{where}: spec.agents[{at}].name")
        else:
            choice = choice.model_copy(update={"optional": False})  # noqa: PLW2901
        chosen[choice.name] = choice
    if len(known) > AGENTS_MAX:
        raise UsageError(f"{where}: over {AGENTS_MAX} agents on a node")
    plain = AgentChoice(name="of-its-own")
    return tuple(
        agent.compiled(choice.share, optional=choice.optional)
        for agent, choice in (
            (each, chosen.get(name, plain)) for name, each in sorted(known.items())
        )
    )


def _shipped_agent(name: str, where: str) -> NodeAgent:
    shipped = {each.name: each for each in list_profiles() if each.kind == NodeAgent.__name__}
    if name not in shipped:
        raise UsageError(
            f"{where}: {unknown_name('agent', name, shipped)}, and NodeAgents of the same file"
        )
    (agent,) = load_file(shipped[name].path)
    assert isinstance(agent, NodeAgent), name
    return agent


def load_source(source: str) -> tuple[Document, ...]:
    """Read a shipped document by name, or a file. A path or an ending in .yaml means a file."""
    return load_file(path_of(source))


def path_of(source: str) -> Path:
    """Return the file of a source. Raises UsageError for a name that is not shipped."""
    return file_of("profile", source, shipped)


def load_file(path: Path) -> tuple[Document, ...]:
    documents = parse_documents(_read(path), str(path))
    for each in documents:
        if isinstance(each, NodeProfile):
            given = each.spec.kubelet_configuration.static_pod_path
            try:
                if given:
                    below(path.parent, given)
            except ValueError as error:
                where = "spec.kubeletConfiguration.staticPodPath"
                raise UsageError(f"{path}: {where}: {error}") from error
    return documents


def below(directory: Path | None, given: str) -> Path:
    """Return a path that a profile names. Raises ValueError unless it is below its directory."""
    root = (directory or Path()).resolve()
    path = root / given
    if directory is None or path.resolve() == root or not path.resolve().is_relative_to(root):
        raise ValueError(
            f"{given} is not below the profile's directory {root}; put the manifests there, and "
            "name them like ./manifests"
        )
    return path


def parse_documents(text: str, origin: str) -> tuple[Document, ...]:
    """Check the documents of a YAML text; `origin` stands in errors."""
    documents = tuple(_check(value, origin) for value in yaml_mappings(text, origin))
    if not documents:
        raise UsageError(f"{origin}: holds no document; expected kind {' or '.join(KINDS)}")
    return documents


def list_profiles() -> tuple[ProfileSummary, ...]:
    """List what is shipped; the first comment line of a file describes it."""
    found = []
    for name, path in sorted(shipped().items()):
        text = _read(path)
        first = text.partition("\n")[0]
        kind = DIRECTORIES[path.parent.name]
        found.append(ProfileSummary(name, kind, first.lstrip("# ").rstrip("."), path))
    return tuple(found)


def show_profile(source: str) -> str:
    """Return the text of a shipped profile or of a file, once it is known to be valid."""
    load_source(source)
    return _read(path_of(source))


def warnings_of(source: str) -> list[str]:
    """Return what the node profiles of a source say that decides nothing, one line each."""
    return load_mix((ProfileChoice(source),)).warnings


class _Schema(GenerateJsonSchema):
    """Writes defaults as documents do."""

    def encode_default(self, dft: object) -> object:
        written = str(dft) if isinstance(dft, Distribution | Quantity) else dft
        return super().encode_default(written)


def json_schema() -> dict[str, object]:
    return schema_of(TypeAdapter(Document), "fleet documents")


def schema_of(documents: TypeAdapter[Any], title: str) -> dict[str, object]:
    """Return the JSON schema of some documents, by the names that users write."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return head | documents.json_schema(by_alias=True, schema_generator=_Schema)


def shipped_directory() -> Path:
    """Return where the shipped documents are: in the wheel, or in a checkout."""
    package = Path(__file__).parent.parent
    installed = package / "profiles"
    return installed if installed.is_dir() else package.parent / "profiles"


def is_path(source: str) -> bool:
    """Return whether a document is given by its path, not by the name of a shipped one."""
    return "/" in source or source.endswith((".yaml", ".yml"))


def shipped() -> dict[str, Path]:
    root = shipped_directory()
    return {path.stem: path for part in DIRECTORIES for path in (root / part).glob("*.yaml")}


def _read(path: Path) -> str:
    too_long = f"over {DOCUMENT_BYTES_MAX} bytes; is it a profile?"
    return read_text(path, DOCUMENT_BYTES_MAX, too_long)


def file_of(what: str, source: str, list_shipped: Callable[[], Mapping[str, Path]]) -> Path:
    """Return the file of a document that is given by its path, or by the name of a shipped one.

    Raises UsageError.
    """
    if is_path(source):
        return Path(source)
    known = list_shipped()
    if source not in known:
        raise UsageError(f"{unknown_name(what, source, known)}, or a file ending in .yaml")
    return known[source]


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Say that nothing of that name is shipped, which one may be meant, and which there are."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"no {what} {name!r}{hint}; known are {', '.join(names)}"


def read_text(path: Path, bytes_max: int, problem: str = "") -> str:
    """Read a file of a user. Raises UsageError; `problem` is what one that is too long has."""
    try:
        if path.stat().st_size > bytes_max:
            raise UsageError(f"{path}: {problem or f'is over {bytes_max >> 20} MiB'}")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text") from error


def yaml_mappings(text: str, origin: str) -> Iterator[dict[str, object]]:
    """Yield the mappings of a YAML text, empty documents left out."""
    try:
        for value in read_documents(text):
            if value is None:
                continue
            if not isinstance(value, dict):
                raise UsageError(f"{origin}: a document is a mapping, not {type(value).__name__}")
            yield value
    except YAMLTextError as error:
        raise UsageError(f"{origin}{error.where}: is not YAML: {error.problem}") from error


def _check(value: Mapping[str, object], origin: str) -> Document:
    """Check one document against the model of its kind."""
    version = value.get("apiVersion")
    if version != API_VERSION:
        raise UsageError(f"{origin}: apiVersion: {version!r} is not {API_VERSION!r}")
    kind = value.get("kind")
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        allowed = " or ".join(map(repr, KINDS))
        raise UsageError(f"{origin}: kind: {kind!r} is not {allowed}")
    try:
        return model.model_validate(value, by_name=False)
    except ValidationError as error:
        raise UsageError(f"{origin}: {explain(error, model)}") from error
