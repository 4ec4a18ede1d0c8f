"""The status patch of a pod: two-way strategic merge, from fragments.

Conditions merge by type and carry only what differs, container
statuses are replaced whole, hostIPs and podIPs merge by ip; a field that became empty is null.
Source: pkg/util/pod/pod.go, PatchPodStatus; apimachinery/pkg/util/strategicpatch/patch.go.
"""

from functools import lru_cache
from typing import Any

import orjson

from fleet.k8s.addresses import each_of, first_of
from fleet.k8s.effects import PodStatusPatch
from fleet.k8s.pods import (
    TOKEN_VOLUME,
    TOKEN_VOLUME_START,
    ContainerState,
    ContainerStatus,
    PodCondition,
    PodStatus,
    RunningState,
    TerminatedState,
    WaitingState,
)
from fleet.k8s.times import rfc3339
from fleet.k8s.well_known import START_ERROR

FRAGMENTS_MAX = 4096  # rendered conditions: pods that start in one second have the same ones
BODY = b'{"metadata":{"uid":"%b"},"status":{%b}}'
_NO_TIME = b"null"
EPHEMERAL = b"ephemeralContainerStatuses"
_STARTED = (b'"started":false,', b'"started":true,')
_EPOCH = b'"1970-01-01T00:00:00Z"'


def pod_status_patch(patch: PodStatusPatch) -> bytes:
    """Render the body of a PATCH of one pod's status; the uid is its precondition."""
    body = BODY % (patch.uid.encode(), _members(patch.old, patch.new))
    if patch.token_suffix:
        body = body.replace(TOKEN_VOLUME, TOKEN_VOLUME_START + patch.token_suffix.encode())
    return body


def _members(old: PodStatus, new: PodStatus) -> bytes:
    parts: list[bytes] = []
    if old.conditions != new.conditions:
        _conditions(parts, old.conditions, new.conditions)
    for field, before, after in (
        (b"containerStatuses", old.containers, new.containers),
        (EPHEMERAL, old.ephemeral_containers, new.ephemeral_containers),
        (b"initContainerStatuses", old.init_containers, new.init_containers),
    ):
        if before != after:
            body = _container_statuses(after, probed=field is not EPHEMERAL)
            parts.append(b'"%b":%b' % (field, body))
    for name, names, ips, now in (
        (b"hostIP", b"hostIPs", old.host_ips, new.host_ips),
        (b"podIP", b"podIPs", old.pod_ips, new.pod_ips),
    ):
        if ips != now:
            parts.append(_primary(name, first_of(ips), first_of(now)) + _addresses(names, ips, now))
    for field, text, value in (
        (b"message", old.message, new.message),
        (b"phase", old.phase, new.phase),
        (b"qosClass", old.qos_class, new.qos_class),
        (b"reason", old.reason, new.reason),
    ):
        if text != value:
            parts.append(b'"%b":%b' % (field, orjson.dumps(value) if value else b"null"))
    for field, shown, json in (
        (b"allocatedResources", old.allocated_json, new.allocated_json),
        (b"resources", old.resources_json, new.resources_json),
    ):
        if shown != json:
            parts.append(b'"%b":%b' % (field, _map_patch(shown, json)))
    if old.observed_generation != new.observed_generation:
        parts.append(b'"observedGeneration":%d' % new.observed_generation)
    if old.start_time_s != new.start_time_s:
        parts.append(b'"startTime":"%b"' % rfc3339(new.start_time_s))
    return b",".join(parts)


@lru_cache(maxsize=FRAGMENTS_MAX)
def _map_patch(shown: bytes, json: bytes) -> bytes:
    """Render what differs between two maps: a key that has gone is null, else it would stay.

    Source: apimachinery/pkg/util/strategicpatch/patch.go, diffMaps.
    """
    if not shown or not json:
        return json or b"null"
    return orjson.dumps(_differing(orjson.loads(shown), orjson.loads(json)))


def _differing(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict) and before != after:
            found[key] = _differing(before, after)
        elif before != after:
            found[key] = after
    return found


def _conditions(
    parts: list[bytes], old: tuple[PodCondition, ...], new: tuple[PodCondition, ...]
) -> None:
    """Append the conditions that differ, in the order that the whole list shall have."""
    if old and not new:
        parts.append(b'"conditions":null')
        return
    before = {condition.type: condition for condition in old}
    changed = [
        _condition(before.pop(condition.type, None), condition)
        for condition in new
        if before.get(condition.type) != condition or not _keep(before, condition.type)
    ]
    changed += [b'{"$patch":"delete","type":"%b"}' % gone.encode() for gone in before]
    if old:
        parts.append(_element_order(tuple(condition.type for condition in new)))
    if changed:
        parts.append(b'"conditions":[%b]' % b",".join(changed))


def _keep(before: dict[str, PodCondition], name: str) -> bool:
    """Note that a condition stays as it was."""
    del before[name]
    return True


@lru_cache(maxsize=64)
def _element_order(types: tuple[str, ...]) -> bytes:
    listed = b",".join(b'{"type":"%b"}' % name.encode() for name in types)
    return b'"$setElementOrder/conditions":[%b]' % listed


@lru_cache(maxsize=FRAGMENTS_MAX)
def _condition(old: PodCondition | None, new: PodCondition) -> bytes:
    """Render a new condition whole, else the fields that differ and the merge key."""
    fields: list[bytes] = []
    if old is None or old.probe_s != new.probe_s:
        probed = b'"%b"' % rfc3339(new.probe_s) if new.probe_s else _NO_TIME
        fields.append(b'"lastProbeTime":' + probed)
    if old is None or old.transition_s != new.transition_s:
        fields.append(b'"lastTransitionTime":"%b"' % rfc3339(new.transition_s))
    if new.message != (old.message if old else ""):
        fields.append(b'"message":' + (orjson.dumps(new.message) if new.message else b"null"))
    if new.observed_generation != (old.observed_generation if old else 0):
        fields.append(b'"observedGeneration":%d' % new.observed_generation)
    if new.reason != (old.reason if old else ""):
        fields.append(b'"reason":' + (orjson.dumps(new.reason) if new.reason else b"null"))
    if old is None or old.status != new.status:
        fields.append(b'"status":"%b"' % new.status.encode())
    fields.append(b'"type":"%b"' % new.type.encode())
    return b"{%b}" % b",".join(fields)


def _primary(field: bytes, old: str, new: str) -> bytes:
    """Render what is left of a list's first address besides the list, with a comma behind it."""
    if old == new:
        return b""
    return b'"%b":"%b",' % (field, new.encode()) if new else b'"%b":null,' % field


def _addresses(field: bytes, old: str, new: str) -> bytes:
    """Render a list of addresses that merges by ip."""
    if not new:
        return b'"%b":null' % field
    before, now = each_of(old), each_of(new)
    listed = _each_ip(b'{"ip":"%b"}', now)
    if not old:
        return b'"%b":[%b]' % (field, listed)
    added = _each_ip(b'{"ip":"%b"}', [ip for ip in now if ip not in before])
    gone = _each_ip(b'{"$patch":"delete","ip":"%b"}', [ip for ip in before if ip not in now])
    changes = b",".join(filter(None, (added, gone)))
    patch = b',"%b":[%b]' % (field, changes) if changes else b""
    return b'"$setElementOrder/%b":[%b]%b' % (field, listed, patch)


def _each_ip(form: bytes, ips: list[str]) -> bytes:
    return b",".join([form % ip.encode() for ip in ips])


def _container_statuses(statuses: tuple[ContainerStatus, ...], *, probed: bool) -> bytes:
    if not statuses:
        return b"null"
    return b"[%b]" % b",".join(_container_status(each, probed=probed) for each in statuses)


def _container_status(status: ContainerStatus, *, probed: bool) -> bytes:
    """Render a status; only the prober sets `started`, which looks at no ephemeral container.

    Source: prober_manager.go, UpdatePodStatus.
    """
    head = b""
    if status.allocated_json:
        head = b'"allocatedResources":%b,' % status.allocated_json
    if status.devices_json:
        head += b'"allocatedResourcesStatus":%b,' % status.devices_json
    if status.container_id:
        head += b'"containerID":"%b",' % status.container_id.encode()
    resources = b""
    if status.resources_json:
        resources = b'"resources":%b,' % status.resources_json
    tail = b""
    if status.volume_mounts_json:
        tail = b',"volumeMounts":' + status.volume_mounts_json
    last = status.last_state
    return (
        b'{%b"image":"%b","imageID":"%b","lastState":%b,"name":"%b","ready":%b,%b'
        b'"restartCount":%d,%b"state":%b%b%b}'
    ) % (
        head,
        status.image.encode(),
        status.image_id.encode(),
        _state(last) if last else b"{}",
        status.name.encode(),
        b"true" if status.ready else b"false",
        resources,
        status.restart_count,
        _STARTED[status.started] if probed else b"",
        _state(status.state),
        b',"user":' + status.user_json if status.user_json else b"",
        tail,
    )


def _state(state: ContainerState) -> bytes:
    if isinstance(state, RunningState):
        return b'{"running":{"startedAt":"%b"}}' % rfc3339(state.started_s)
    if isinstance(state, WaitingState):
        fields = []
        if state.message:
            fields.append(b'"message":' + orjson.dumps(state.message))
        if state.reason:
            fields.append(b'"reason":"%b"' % state.reason.encode())
        return b'{"waiting":{%b}}' % b",".join(fields)
    return b'{"terminated":%b}' % _terminated(state)


def _terminated(state: TerminatedState) -> bytes:
    # A runtime gives a container that it could not start the first of all times.
    never = _EPOCH if state.reason == START_ERROR else _NO_TIME
    started = b'"%b"' % rfc3339(state.started_s) if state.started_s else never
    finished = b'"%b"' % rfc3339(state.finished_s) if state.finished_s else _NO_TIME
    fields = []
    if state.container_id:
        fields.append(b'"containerID":"%b"' % state.container_id.encode())
    fields.append(b'"exitCode":%d,"finishedAt":%b' % (state.exit_code, finished))
    if state.message:
        fields.append(b'"message":' + orjson.dumps(state.message))
    if state.reason:
        fields.append(b'"reason":"%b"' % state.reason.encode())
    fields.append(b'"startedAt":' + started)
    return b"{%b}" % b",".join(fields)
