"""What a container's spec says about the surroundings of its command: variables, mounts, stdin."""

from typing import NamedTuple


class MountSpec(NamedTuple):
    """Where a container sees a volume."""

    path: str
    volume: str
    inner: str  # the path within the volume: subPath
    expression: str = ""  # what that path follows from: subPathExpr
    read_only: bool = False
    recursive: bool = False  # recursiveReadOnly: Enabled


class EnvRef(NamedTuple):
    """Where the value of a variable comes from. Source: core/v1 EnvVarSource."""

    kind: str  # Field, Resource, ConfigMap, Secret, File, or "" for what is not read
    key: str = ""  # the path of a field, the name of a resource, the key of an object or file
    name: str = ""  # of the object, the volume, or the container whose resources are meant
    divisor: str = ""
    path: str = ""  # of the file in the volume
    optional: bool = False  # of the key of a file


class Variable(NamedTuple):
    """One variable of a container. Source: core/v1 EnvVar."""

    name: str
    value: str = ""
    source: EnvRef | None = None


class EnvFrom(NamedTuple):
    """An object all of whose keys become variables. Source: core/v1 EnvFromSource."""

    kind: str  # ConfigMap or Secret
    name: str
    prefix: str = ""


class ScriptSpec(NamedTuple):
    """What a container's spec says about the surroundings of its command."""

    variables: tuple[Variable, ...] = ()
    mounts: tuple[MountSpec, ...] = ()
    env_from: tuple[EnvFrom, ...] = ()
    has_service_links: bool = True
    working_dir: str = ""  # "" for the image's own
    stdin: bool = False
