"""A small API server in memory, with the semantics that preflight, adoption and clean-up rely on.

It stands in for `Api.request`: versions, conflicts, label selectors, pages, reviews. Each of those
answers is checked against a real server in tests/e2e/test_cluster.py.
"""

import asyncio
import copy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from fleet.cluster.api_client import JSON, METADATA_ONLY, Answer, Api, Cluster
from fleet.cluster.cleanup import CSI_NODES, NODE_LEASES
from fleet.cluster.identity import ACCESS_REVIEW, SELF_REVIEW, Permission
from fleet.cluster.ownership import NODES, OWNER_ANNOTATION, PREFIX_LABEL, RUN_LABEL

Json = dict[str, Any]
CONTINUE_VERSION = "v1 "


class FakeApi(Api):
    """Answers from a dictionary of objects by path."""

    def __init__(self) -> None:
        super().__init__(cast("Cluster", None), "test")
        self.objects: dict[str, Json] = {}
        self.log: list[tuple[str, str]] = []
        self.date_s = 1_800_000_000
        self.denied: set[Permission] = set()
        self.user = "fleet"
        self.groups_of_user_alone: tuple[str, ...] | None = ("system:nodes",)
        self.groups_with_group: tuple[str, ...] | None = ("system:nodes",)
        self.expire_next_page = False
        self.fail_next: list[Answer] = []
        self.before_request: Callable[[str, str], None] = lambda _method, _path: None
        self._version = 0

    def put(self, path: str, **body: Any) -> Json:
        """Create an object as if someone else had."""
        self._version += 1
        metadata: Json = {
            "name": path.rsplit("/", 1)[1],
            "uid": f"uid-{self._version}",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **body.pop("metadata", {}),
            "resourceVersion": str(self._version),
        }
        self.objects[path] = {"metadata": metadata, **body}
        return self.objects[path]

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: object = None,
        content_type: str = JSON,
        accept: str = JSON,
        headers: Iterable[tuple[str, str]] = (),
    ) -> Answer:
        del content_type
        await asyncio.sleep(0)  # a real request lets others run
        self.log.append((method, path))
        self.before_request(method, path)
        if self.fail_next:
            return self.fail_next.pop(0)
        asked = dict(query or {})
        sent = cast("Json", copy.deepcopy(body) or {})
        if path == ACCESS_REVIEW:
            return self._review_access(sent)
        if path == SELF_REVIEW:
            return self._review_self(dict(headers))
        handlers: dict[str, Callable[[str, Json, Json], Answer]] = {
            "GET": self._get,
            "POST": self._post,
            "PUT": self._put,
            "PATCH": self._patch,
            "DELETE": self._delete,
        }
        answer = handlers[method](path, asked, sent)
        if accept == METADATA_ONLY and answer.ok:
            answer.body["items"] = [{"metadata": each["metadata"]} for each in answer.body["items"]]
        return answer

    def _answer(self, code: int, body: Json) -> Answer:
        return Answer(code, copy.deepcopy(body), self.date_s)

    def _refuse(self, code: int, message: str) -> Answer:
        return self._answer(code, {"kind": "Status", "message": message})

    def _get(self, path: str, asked: Json, _sent: Json) -> Answer:
        if path in self.objects:
            return self._answer(200, self.objects[path])
        if path.rsplit("/", 1)[1] not in LISTS:
            return self._refuse(404, f"{path} not found")
        if self.expire_next_page and asked.get("continue"):
            self.expire_next_page = False
            return self._refuse(410, "The provided continue parameter is too old")
        found = self._selected(path, asked)
        start = int(str(asked.get("continue", f"{CONTINUE_VERSION}0")).removeprefix("v1 "))
        end = start + int(asked.get("limit", len(found) + 1))
        more = f"{CONTINUE_VERSION}{end}" if end < len(found) else ""
        items = [self.objects[name] for name in found[start:end]]
        return self._answer(200, {"metadata": {"continue": more}, "items": items})

    def _selected(self, path: str, asked: Json) -> list[str]:
        selector = str(asked.get("labelSelector", ""))
        field = str(asked.get("fieldSelector", ""))
        found = []
        for name in sorted(self.objects):
            kind = path.rsplit("/", 1)[1]
            parent, _, _leaf = name.rpartition("/")
            in_all_namespaces = "/namespaces/" in parent and parent.endswith(f"/{kind}")
            if parent != path and not (in_all_namespaces and "/namespaces/" not in path):
                continue
            item = self.objects[name]
            key, _, wanted = field.partition("=")
            if field and FIELDS[key](item) != wanted:
                continue
            if _matches(item["metadata"].get("labels", {}), selector):
                found.append(name)
        return found

    def _post(self, path: str, _asked: Json, sent: Json) -> Answer:
        name = f"{path}/{sent['metadata']['name']}"
        if name in self.objects:
            return self._refuse(409, f"{name} already exists")
        return self._answer(201, self.put(name, **sent))

    def _put(self, path: str, _asked: Json, sent: Json) -> Answer:
        if path not in self.objects:
            return self._refuse(404, f"{path} not found")
        before = self.objects[path]["metadata"]
        if sent["metadata"].get("uid", before["uid"]) != before["uid"]:
            return self._refuse(409, "the UID in the precondition does not match")
        version = sent["metadata"].get("resourceVersion")
        is_unconditional = version is None and "/configmaps/" in path  # as its strategy allows
        if not is_unconditional and version != before["resourceVersion"]:
            return self._refuse(409, "the object has been modified")
        return self._answer(200, self.put(path, **sent))

    def _patch(self, path: str, _asked: Json, sent: Json) -> Answer:
        if path not in self.objects:
            return self._refuse(404, f"{path} not found")
        uid = sent.get("metadata", {}).pop("uid", None)
        if uid not in (None, self.objects[path]["metadata"]["uid"]):
            return self._refuse(409, "the UID in the precondition does not match")
        version = sent.get("metadata", {}).pop("resourceVersion", None)
        if version not in (None, self.objects[path]["metadata"]["resourceVersion"]):
            return self._refuse(409, "the object has been modified")
        _merge(self.objects[path], sent)
        found = self.objects[path]
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        if "deletionTimestamp" in found["metadata"] and not found["metadata"].get("finalizers"):
            del self.objects[path]
        return self._answer(200, found)

    def _delete(self, path: str, asked: Json, sent: Json) -> Answer:
        if path not in self.objects:
            if path.rsplit("/", 1)[1] in LISTS:
                for name in self._selected(path, asked):
                    del self.objects[name]
                return self._answer(200, {})
            return self._refuse(404, f"{path} not found")
        metadata = self.objects[path]["metadata"]
        for key, value in sent.get("preconditions", {}).items():
            if metadata[key] != value:
                return self._refuse(409, f"the {key} in the precondition does not match")
        if metadata.get("finalizers"):
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            return self._answer(200, self.objects[path])
        del self.objects[path]
        return self._answer(200, {})

    def _review_access(self, sent: Json) -> Answer:
        attributes = sent["spec"]["resourceAttributes"]
        is_allowed = Permission(**{"group": "", **attributes}) not in self.denied
        return self._answer(201, {"status": {"allowed": is_allowed}})

    def _review_self(self, headers: dict[str, str]) -> Answer:
        has_group = "Impersonate-Group" in headers
        groups = self.groups_with_group if has_group else self.groups_of_user_alone
        if groups is None:
            return self._refuse(403, f"users {headers['Impersonate-User']!r} is forbidden")
        user = {"username": headers.get("Impersonate-User", self.user), "groups": list(groups)}
        return self._answer(201, {"status": {"userInfo": user}})


LISTS = frozenset(
    {*("nodes", "pods", "leases", "csinodes", "daemonsets"), "resourceslices", "volumeattachments"}
    | {"namespaces", "clusterroles", "clusterrolebindings"}
    | {"persistentvolumes", "persistentvolumeclaims", "configmaps", "deployments", "statefulsets"}
)


FIELDS: dict[str, Callable[[Json], object]] = {
    "metadata.name": lambda item: item["metadata"]["name"],
    "spec.nodeName": lambda item: item.get("spec", {}).get("nodeName"),
}


def node_marks(run: str, prefix: str = "", **labels: str) -> Json:
    """Return the metadata of a Node of a run; a Lease of uid `lease` is what it held."""
    marks = {
        "labels": {RUN_LABEL: run, **labels},
        "annotations": {OWNER_ANNOTATION: f"{run}/lease"},
    }
    if prefix:
        marks["labels"][PREFIX_LABEL] = prefix
    return marks


def add_owned(api: FakeApi, name: str, marks: Json) -> Json:
    """Create a Node with its Lease and CSINode, as a kubelet does."""
    node = api.put(f"{NODES}/{name}", metadata=marks)
    owner = {"kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
    for path in (NODE_LEASES, CSI_NODES):
        api.put(f"{path}/{name}", metadata={"ownerReferences": [owner]})
    return node


def _matches(labels: Json, selector: str) -> bool:
    for part in filter(None, selector.split(",")):
        if part.startswith("!"):
            if part[1:] in labels:
                return False
        elif "!=" in part:
            key, value = part.split("!=", 1)
            if labels.get(key) == value:
                return False
        elif "=" in part:
            key, value = part.split("=", 1)
            if labels.get(key) != value:
                return False
        elif part not in labels:
            return False
    return True


def _merge(target: Json, patch: Json) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        elif value is None:
            target.pop(key, None)
        else:
            target[key] = value


async def no_sleep(_seconds: float) -> None:
    """Let retries happen at once, and whoever else is ready before them."""
    await asyncio.sleep(0)


def write_kubeconfig(path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    document = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "test",
    }
    path.write_text(yaml.safe_dump(document))
    return path
