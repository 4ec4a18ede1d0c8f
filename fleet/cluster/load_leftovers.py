"""What the API users of a run have beside its nodes, and removing it.

A namespace, and what they may do in the whole cluster. Both carry the run twice, in a label and in
the name that is made of it; what has one mark only is somebody else's, and stays.
"""

from typing import NamedTuple

from fleet.cluster.api_client import Api
from fleet.cluster.identity import Permission, is_allowed
from fleet.cluster.run_id import LABEL, LOAD_LABEL, load_name
from fleet.k8s.well_known import BINDINGS, RBAC, ROLES

NAMESPACES = "/api/v1/namespaces"
KINDS = (
    (BINDINGS, Permission("delete", RBAC, "clusterrolebindings")),
    (ROLES, Permission("delete", RBAC, "clusterroles")),
    (NAMESPACES, Permission("delete", "", "namespaces")),
)


class Leftover(NamedTuple):
    """One object of a run's API users."""

    path: str
    uid: str
    run: str


async def find_load(api: Api, run: str = "") -> list[Leftover]:
    """Return what API users of a run, or of all, have; nothing of what we may not remove."""
    selector = f"{LOAD_LABEL},{LABEL}={run}" if run else f"{LOAD_LABEL},{LABEL}"
    found = []
    for path, right in KINDS:
        if not await is_allowed(api, right):
            continue
        listed = await api.request("GET", path, query={"labelSelector": selector})
        for item in (listed.body.get("items") or []) if listed.ok else []:
            metadata = item["metadata"]
            owner = metadata.get("labels", {}).get(LABEL, "")
            if owner and metadata["name"] == load_name(owner):
                found.append(Leftover(f"{path}/{metadata['name']}", metadata["uid"], owner))
    return found


async def remove_load(api: Api, found: list[Leftover]) -> None:
    """Delete these very objects; one that has the name of one by now stays."""
    for each in found:
        body = {"preconditions": {"uid": each.uid}}
        await api.request("DELETE", each.path, body=body)
