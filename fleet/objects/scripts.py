"""What a container's spec says about its script: variables, mounts, the image's own command."""

from typing import NamedTuple

UNREAD = "?"
"""Stands for the value of a variable whose source is not read."""


class MountSpec(NamedTuple):
    """Where a container sees a volume."""

    path: str
    volume: str
    inner: str  # the path within the volume: subPath
    expression: str = ""  # what that path follows from: subPathExpr


class ScriptSpec(NamedTuple):
    """What a container's spec says about the surroundings of its script.

    A variable is (name, value, field path); UNREAD stands for a source that is not read.
    """

    variables: tuple[tuple[str, str, str], ...] = ()
    mounts: tuple[MountSpec, ...] = ()
    entry_point: tuple[str, ...] = ()  # what the image does by itself, if nothing else is asked
