"""Faults as the annotation of a Node says them: `Partition:8m mode=Reset; ClockSkew by=1h`."""

import shlex
from typing import NamedTuple

from pydantic import ValidationError

from fleet.errors import UsageError
from fleet.faults.fault import FAULTS, PARAMETERS, FaultSpec
from fleet.profile.schema import explain, key_of
from fleet.quantity import parse_positive_duration

FAULT_ANNOTATION = "fleet.emulator/fault"
NOTE_FAULTS_MAX = 16
NOTE_CHARACTERS_MAX = 4096
_KEYS = (*map(key_of, PARAMETERS), "every")


class NotedFault(NamedTuple):
    """One fault of an annotation; `for_ns` is None where it lasts until the annotation goes."""

    spec: FaultSpec
    for_ns: int | None


def read_note(text: str, node: str) -> tuple[NotedFault, ...]:
    """Return the faults that an annotation asks for on its node, none if it is empty.

    Raises UsageError in one line.
    """
    if len(text) > NOTE_CHARACTERS_MAX:
        raise UsageError(f"{FAULT_ANNOTATION}: is over {NOTE_CHARACTERS_MAX} characters")
    parts = [each.strip() for each in text.split(";") if each.strip()]
    if len(parts) > NOTE_FAULTS_MAX:
        raise UsageError(f"{FAULT_ANNOTATION}: names over {NOTE_FAULTS_MAX} faults")
    try:
        return tuple(_read(part, node) for part in parts)
    except ValidationError as error:
        raise UsageError(f"{FAULT_ANNOTATION}: {explain(error, FaultSpec)}") from error
    except ValueError as error:
        raise UsageError(f"{FAULT_ANNOTATION}: {error}") from error


def _read(part: str, node: str) -> NotedFault:
    head, *pairs = shlex.split(part)
    name, colon, duration = head.partition(":")
    kind = next((each for each in FAULTS if each.value == name), None)
    if kind is None:
        known = ", ".join(each.value for each in FAULTS if not FAULTS[each].of_control_plane)
        raise ValueError(f"{name!r} is no fault; these are: {known}")
    if FAULTS[kind].of_control_plane:
        raise ValueError(f"{name} hits no node, but the control plane: use `fleet inject`")
    given: dict[str, object] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in _KEYS:
            raise ValueError(f"{pair!r} is not KEY=VALUE with one of: {', '.join(_KEYS)}")
        given[key] = value.split(",") if key == "heartbeats" else value
    spec = FaultSpec.model_validate({"type": name, "nodes": [node], **given})
    if not colon:
        return NotedFault(spec, None)
    if spec.is_instant:
        raise ValueError(f"{name} is over at once; it takes no duration")
    for_ns = parse_positive_duration(duration)
    if not for_ns:
        raise ValueError(f"{name}:{duration}: must be above 0s")
    return NotedFault(spec, for_ns)
