"""The body of an Event of any reporter. Source: client-go/tools/record/event.go, makeEvent."""

from collections.abc import Iterable
from typing import Any, NamedTuple


class ObjectRef(NamedTuple):
    """What an event is about. Source: core/v1 ObjectReference."""

    kind: str
    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""
    api_version: str = "v1"

    def json(self) -> dict[str, str]:
        """Return it as the API shows it, without empty members."""
        members = {
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "apiVersion": self.api_version,
            "resourceVersion": self.resource_version,
            "fieldPath": self.field_path,
        }
        return {member: value for member, value in members.items() if value}


class Report(NamedTuple):
    """What happened, and who says so."""

    type: str  # Normal or Warning
    reason: str
    message: str
    component: str
    host: str = ""  # the node of the component
    reporter: str = ""  # reportingComponent; upstream's kubelets leave it out for some


def event_json(
    name: str,
    about: ObjectRef,
    report: Report,
    times: tuple[str, str, int],
    annotations: Iterable[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Return a core/v1 Event; `times` are the first, the last, and how many."""
    notes = dict(annotations)
    first, last, count = times
    return {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": about.namespace or "default",
            **({"annotations": notes} if notes else {}),
        },
        "involvedObject": about.json(),
        "reason": report.reason,
        "message": report.message,
        "source": {
            "component": report.component,
            **({"host": report.host} if report.host else {}),
        },
        "firstTimestamp": first,
        "lastTimestamp": last,
        "count": count,
        "type": report.type,
        "eventTime": None,
        "reportingComponent": report.reporter,
        "reportingInstance": report.host if report.reporter else "",
    }
