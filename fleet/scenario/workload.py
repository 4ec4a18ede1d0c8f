"""What a scenario puts into the cluster beside its nodes: manifests, once or again and again."""

import copy
from pathlib import Path
from typing import Annotated, NamedTuple, cast

from pydantic import Field, model_validator

from fleet.clock import NS_PER_S
from fleet.errors import UsageError
from fleet.profile.loader import read_text
from fleet.profile.schema import DurationNs, Spec
from fleet.profile.yaml_text import YAMLTextError, read_documents

RATE = 10.0
LIFETIME_NS = 30 * NS_PER_S
COUNT_MAX = 100_000
RATE_MAX = 1_000.0
FILE_BYTES_MAX = 1 << 20

Manifest = dict[str, object]
Rate = Annotated[float, Field(gt=0, le=RATE_MAX)]


class ManifestSpec(Spec):
    """Which objects: those of a file beside the scenario's, or one that is written out."""

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
        text = read_text(path, FILE_BYTES_MAX, f"is over {FILE_BYTES_MAX >> 20} MiB")
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
    """Objects that are created once; a later phase changes those of the same name."""

    count: Annotated[int, Field(ge=1, le=COUNT_MAX)] = 1
    rate: Rate = RATE  # of each second
    at_ns: DurationNs = 0  # since the phase began


class ChurnSpec(ManifestSpec):
    """Objects that are created at a rate as long as the phase lasts, and deleted after a while."""

    rate: Rate = RATE
    lifetime_ns: DurationNs = LIFETIME_NS


class Named(NamedTuple):
    """One object to be: its manifest, and the name that it gets."""

    manifest: Manifest
    name: str

    def document(self) -> Manifest:
        """Return the object as it is sent, a copy."""
        made = copy.deepcopy(self.manifest)
        metadata = made["metadata"]
        assert isinstance(metadata, dict), metadata
        metadata["name"] = self.name
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


def named(manifests: list[Manifest], number: int, *, is_only: bool) -> list[Named]:
    """Return the objects of the number-th copy of some manifests; the only one keeps its name."""
    found = []
    for each in manifests:
        metadata = each["metadata"]
        assert isinstance(metadata, dict), metadata
        name = str(metadata["name"])
        found.append(Named(each, name if is_only else f"{name}-{number:05d}"))
    return found


def pods_of(manifest: Manifest) -> int:
    """Return how many pods an object stands for, 0 if that depends on other things."""
    if manifest["kind"] == "Pod":
        return 1
    spec = manifest.get("spec")
    if manifest["kind"] in {"Deployment", "ReplicaSet", "StatefulSet", "ReplicationController"}:
        replicas = spec.get("replicas", 1) if isinstance(spec, dict) else 1
        return replicas if isinstance(replicas, int) else 1
    return 0
