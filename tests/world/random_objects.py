"""Random objects as the API shows them, out of the messages that fleet knows.

The choices come from one seed: drawn by hypothesis one by one, a Pod would take a second.
"""

from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from fleet.k8s.times import rfc3339, rfc3339_micro
from fleet.wire.api.protobuf import INLINE, message_class

NS_PER_S = 1_000_000_000
NAMED = frozenset({"name", "namespace", "uid", "resourceVersion", "phase"})
"""Members of metadata and references that are never empty."""
ONE_OF = frozenset({"VolumeSource", "ProbeHandler", "LifecycleHandler", "ContainerState"})
"""Messages of which one field is set."""
TEXTS = ("a", "kubernetes.io/x", "nvidia.com/gpu", "Strict", "Always", "é", "x=y,z")
QUANTITIES = ("1", "250m", "1Gi", "0", "1500", "2e3")
SHARE = 0.3
"""Of the members that an object may have, how many it has."""


def random_object(kind: str, api_version: str, seed: int) -> dict[str, Any]:
    """Return an object of a kind."""
    message = "AllocatedClaim" if kind == "ResourceClaim" else kind
    members = _members(message_class(message).DESCRIPTOR, Random(seed))
    return {"kind": kind, "apiVersion": api_version, **members}


def _members(kind: Descriptor, random: Random) -> Any:
    if kind.name == "Quantity":
        return random.choice(QUANTITIES)
    if kind.name == "Time":
        return rfc3339(random.randrange(1, 2**33)).decode()
    if kind.name == "MicroTime":
        return rfc3339_micro(random.randrange(1, 2**33) * NS_PER_S + 1000).decode()
    if kind.name == "IntOrString":
        return random.choice((80, "http", "8080"))
    if kind.name == "FieldsV1":
        return {"f:metadata": {"f:labels": {".": {}}}}
    shown: dict[str, Any] = {}
    fields = [random.choice(kind.fields)] if kind.name in ONE_OF else kind.fields
    for field in fields:
        if len(fields) > 1 and not _is_needed(field) and random.random() > SHARE:
            continue
        value = _value(field, random)
        if field.name.startswith(INLINE):
            shown.update(value)
        else:
            shown[field.name] = value
    return shown


def _is_needed(field: FieldDescriptor) -> bool:
    """Tell whether the server always has it: what is not omitempty, and names."""
    if field.name in {"metadata", "spec", "pool"} or field.name.startswith(INLINE):
        return True
    if field.type != FieldDescriptor.TYPE_STRING or field.is_repeated:
        return field.name in {"port", "generation"}
    return field.has_presence or field.name in NAMED


def _value(field: FieldDescriptor, random: Random) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        keys = sorted(random.sample(TEXTS, random.randrange(1, 3)))
        return {key: _value(kind.fields_by_name["value"], random) for key in keys}
    if field.is_repeated:
        return [_one(field, random) for _ in range(random.randrange(1, 3))]
    return _one(field, random)


def _one(field: FieldDescriptor, random: Random) -> Any:
    """Return a value; a zero only where JSON shows it."""
    if field.message_type is not None:
        return _members(field.message_type, random)
    if field.type == FieldDescriptor.TYPE_STRING:
        return random.choice(TEXTS)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return "c2VjcmV0"
    is_zero = field.has_presence and random.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BOOL:
        return not is_zero
    return 0 if is_zero else random.randrange(1, 1000)
