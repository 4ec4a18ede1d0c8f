"""Controllers that scenes need in addition to those of `tests/world`: of Jobs and claims."""

from collections.abc import Callable

from world.targets import Key
from world.virtual_time import World

from oracle.normalisation import Json
from oracle.virtual_node import AuditedServer

Others = dict[Key, Json]
"""Objects of kinds that no kubelet reads."""
ACTS_S = 0.05
RECREATES_S = 1.0
"""Source: pkg/controller/job/job_controller.go, syncJobBatchPeriod."""
TRACKED = "batch.kubernetes.io/job-tracking"
OVER = ("Succeeded", "Failed")


class Jobs:
    """Runs each Job's pod, again when it fails as its policy allows, and tells how it ended."""

    def __init__(
        self,
        world: World,
        server: AuditedServer,
        others: Others,
        admit: Callable[[Json], Json],
    ) -> None:
        self._world = world
        self._server = server
        self._others = others
        self._admit = admit
        self._made = 0
        server.listeners.append(self._on_write)

    def on_job(self, key: Key) -> None:
        """Run a Job that is new."""
        self._world.after(ACTS_S, lambda: self._create_pod(key))

    def on_deleted(self, key: Key) -> None:
        """Delete the pods of a Job that is gone."""
        for pod in self._server.all("pods"):
            if pod["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name") == key[2]:
                self._server.delete_pod(pod["metadata"]["name"], key[1])

    def _create_pod(self, key: Key) -> None:
        job = self._others.get(key)
        if job is None:
            return
        self._made += 1
        name = job["metadata"]["name"]
        labels = {"batch.kubernetes.io/job-name": name, "job-name": name}
        template = job["spec"]["template"]
        owner = {
            **{key: job[key] for key in ("apiVersion", "kind")},
            **{key: job["metadata"][key] for key in ("name", "uid")},
            "controller": True,
            "blockOwnerDeletion": True,
        }
        pod = self._admit({"kind": "Pod", "metadata": {}, "spec": template["spec"]})
        pod["metadata"] = {
            "labels": labels,
            "finalizers": [TRACKED],
            "ownerReferences": [owner],
        }
        self._server.create(("pods", key[1], f"{name}-{self._made:05d}"), pod)

    def _on_write(self, key: Key, old: Json | None, new: Json | None) -> None:
        if key[0] != "pods" or new is None or old is None:
            return
        is_over = new["status"].get("phase") in OVER
        if is_over and TRACKED in new["metadata"].get("finalizers", ()):
            self._world.after(ACTS_S, lambda: self._count(key, str(new["metadata"]["uid"])))

    def _count(self, key: Key, uid: str) -> None:
        """Count the end of a pod, once, and let the pod go."""
        pod = self._server.find("pods", key[2], key[1])
        if pod is None or TRACKED not in pod["metadata"].get("finalizers", ()):
            return
        assert pod["metadata"]["uid"] == uid, key
        meta = pod["metadata"]
        left = [each for each in meta["finalizers"] if each != TRACKED]
        self._server.replace(key, {**pod, "metadata": {**meta, "finalizers": left}})
        self._server.finish(key)
        owner = pod["metadata"]["labels"]["job-name"]
        where = ("jobs", key[1], owner)
        job = self._others.get(where)
        if job is None:
            return
        action = "Count" if pod["status"]["phase"] == "Failed" else "Complete"
        rules = job["spec"].get("podFailurePolicy", {}).get("rules", ())
        action = next((each["action"] for each in rules if matches(each, pod)), action)
        limit = job["spec"].get("backoffLimit", 6)
        failed = job["status"].get("failed", 0) + (action == "Count")
        kind = "Complete" if action == "Complete" else ""
        if action == "FailJob" or failed > limit:
            kind = "Failed"
        conditions = [{"type": kind, "status": "True"}] if kind else []
        self._others[where] = {**job, "status": {"failed": failed, "conditions": conditions}}
        if not kind:
            self._world.after(RECREATES_S, lambda: self._create_pod(where))


def matches(rule: Json, pod: Json) -> bool:
    """Return whether a rule of a failure policy is about how a pod failed."""
    if pod["status"]["phase"] != "Failed":
        return False
    have = {(each["type"], each["status"]) for each in pod["status"].get("conditions", ())}
    if any((each["type"], each["status"]) in have for each in rule.get("onPodConditions", ())):
        return True
    codes = {
        each["state"]["terminated"]["exitCode"]
        for each in pod["status"].get("containerStatuses", ())
        if "terminated" in each["state"]
    }
    return any(code in codes for code in rule.get("onExitCodes", {}).get("values", ()))


def bind_claims(world: World, server: AuditedServer) -> None:
    """Bind claims to the volumes that are meant for them, as the volume controller does."""

    def on_write(key: Key, _old: Json | None, new: Json | None) -> None:
        if key[0] in ("persistentvolumes", "persistentvolumeclaims") and new is not None:
            world.after(ACTS_S, bind)

    def bind() -> None:
        for volume in server.all("persistentvolumes"):
            wanted = volume["spec"].get("claimRef") or {}
            claim = server.find(
                "persistentvolumeclaims", wanted.get("name", ""), wanted.get("namespace", "")
            )
            if claim is None or claim.get("status", {}).get("phase") == "Bound":
                continue
            name = volume["metadata"]["name"]
            uid = {"uid": claim["metadata"]["uid"]}
            spec = {**volume["spec"], "claimRef": {**wanted, **uid}}
            server.update("persistentvolumes", name, {"spec": spec, "status": {"phase": "Bound"}})
            bound = {"spec": {"volumeName": name}, "status": {"phase": "Bound"}}
            meta = claim["metadata"]
            server.update("persistentvolumeclaims", meta["name"], bound, meta["namespace"])

    server.listeners.append(on_write)


def reserve_claims(world: World, server: AuditedServer) -> None:
    """Reserve allocated ResourceClaims for the pods that are bound to the node.

    Source: pkg/controller/resourceclaim/controller.go, syncPod.
    """

    def on_write(key: Key, _old: Json | None, new: Json | None) -> None:
        if new is not None and (
            key[0] == "resourceclaims" or new.get("spec", {}).get("resourceClaims")
        ):
            world.after(ACTS_S, reserve)

    def reserve() -> None:
        for pod in server.all("pods"):
            meta = pod["metadata"]
            for each in pod["spec"].get("resourceClaims", ()):
                name = each["resourceClaimName"]
                claim = server.find("resourceclaims", name, meta["namespace"])
                status = {} if claim is None else claim.get("status", {})
                users = status.get("reservedFor", [])
                user = {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}
                if status.get("allocation") and user not in users:
                    change = {"status": {**status, "reservedFor": [*users, user]}}
                    server.update("resourceclaims", name, change, meta["namespace"])

    server.listeners.append(on_write)
