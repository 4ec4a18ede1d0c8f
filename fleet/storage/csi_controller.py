"""The controller side of simulated CSI drivers: external provisioner, attacher and resizer.

    claim --delay--> PersistentVolume          VolumeAttachment --delay--> status.attached
    volume Released --delay--> deleted         being deleted --delay--> finalizer removed
    claim asks for more --delay--> more, or FileSystemResizePending until its node has expanded it

Volumes and attachments of other drivers are neither kept nor touched: what all provisioners write
alike, their finalizer on a PersistentVolume, says nothing about whose it is.

It binds nothing: the PV controller does, by the claimRef. It never touches a kubelet: nodes come to
know of an attachment through the attach-detach controller, as real ones do.
Source: kubernetes-csi/external-provisioner, sig-storage-lib-external-provisioner (controller.go,
shouldProvision, shouldDelete); kubernetes-csi/external-attacher (csi_handler.go).
Differs: no driver is behind it; it runs alongside the nodes, once for all drivers of a run.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable

from fleet import __version__
from fleet.background import Background, give_up
from fleet.clock import Draws
from fleet.cluster.api_client import Api, Cluster
from fleet.cluster.api_client import each as for_each
from fleet.cluster.cleanup import CSI_NODES, PATIENCE_S
from fleet.cluster.informer import Informer, ObjectWatch, trimmed
from fleet.cluster.leftovers import (
    ATTACHMENTS,
    PROVISIONED_BY,
    PROVISIONER_FINALIZER,
    STORAGE_OF,
    VOLUMES,
    attacher_finalizer,
    driver_of,
    is_provisioned,
    object_mark,
)
from fleet.cluster.ownership import OWNER_ANNOTATION
from fleet.errors import SetupError
from fleet.k8s.volumes import RESOURCE_EXHAUSTED
from fleet.profile.node_model import NodeModel
from fleet.profile.pod_behavior import CSIDriver
from fleet.profile.settings import Fidelity, Settings
from fleet.storage.csi_objects import (
    Json,
    claim_event,
    finalizers_of,
    grown,
    in_progress,
    is_deleting,
    is_infeasible_on_node,
    pending_on_node,
    persistent_volume,
    volume_of,
    wants_resize,
)

CLAIMS = "/api/v1/persistentvolumeclaims"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"

PROVISIONER_NOTE = "volume.kubernetes.io/storage-provisioner"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
PROVISION_ERROR = "fleet.emulator/provision-error"
ATTACH_ERROR = "fleet.emulator/attach-error"
"""Annotations of a claim: what its storage refuses, for as long as they are there."""

# external-provisioner, cmd/csi-provisioner: --retry-interval-start, --retry-interval-max.
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 300.0
TASKS_MAX = 64
"""Operations under way at a time; as many as a sidecar has workers, for all drivers together."""
_STREAM = 0xC51C
USER_AGENT = f"fleet-csi-controller/{__version__}"
PURPOSE = "csi-controller"
RELEASE_MAX_S = PATIENCE_S + 15.0

Wanted = Callable[[str], bool]
Operation = Callable[[str], Coroutine[None, None, bool]]
"""On the object of a key; returns whether it is done."""

log = logging.getLogger(__name__)


class CSIController:
    """Provisions, attaches, detaches and deletes the volumes of some drivers."""

    def __init__(
        self,
        api: Api,
        drivers: Iterable[CSIDriver],
        draws: Draws,
        background: Background,
        run: str,
        attach_problem: Callable[[str], str] = lambda _node: "",
    ) -> None:
        self._api = api
        self._run = run  # what is made or held here is marked as of this one
        self._attach_problem = attach_problem  # of a node: why nothing can be attached there
        self._background = background
        self._drivers = {driver.name: driver for driver in drivers}
        self._draws = draws
        self._informers = [
            self._informer(number, path)
            for number, path in enumerate((CLASSES, ATTACHMENTS, VOLUMES, CLAIMS))
        ]
        stores = (informer.objects for informer in self._informers)
        self._classes, self._attachments, self._volumes, self._claims = stores
        self._attached: Counter[str] = Counter()  # attachments by volume
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(TASKS_MAX)
        self._numbers = 0
        self._began_ns = time.monotonic_ns()  # as the kubelets, but for the time of a bring-up

    async def run(self) -> None:
        """Work until cancelled; what was begun is then given up."""
        try:
            async with asyncio.TaskGroup() as group:
                for informer in self._informers:
                    group.create_task(informer.run())
        finally:
            await give_up(*self._busy.values())

    async def release(self, api: Api) -> None:
        """Take our finalizers off by `api`, so that nothing waits for us when we are gone."""
        self._api = api
        for path, store in ((ATTACHMENTS, self._attachments), (VOLUMES, self._volumes)):

            async def let_go(obj: Json, path: str = path) -> None:
                ours = self._our_finalizers(obj)
                if ours:
                    await self._finalize(path, obj, remove=ours)

            await for_each(tuple(store.values()), let_go)

    def _our_finalizers(self, obj: Json) -> list[str]:
        """Return the finalizers that one of our drivers put on a volume or attachment."""
        driver = driver_of(obj)
        assert driver in self._drivers, obj
        ours = {attacher_finalizer(driver)}
        if (obj["metadata"].get("annotations") or {}).get(PROVISIONED_BY) == driver:
            ours.add(PROVISIONER_FINALIZER)
        return [each for each in finalizers_of(obj) if each in ours]

    # ---- what there is ----

    def _informer(self, number: int, path: str) -> Informer:
        return Informer(
            self._api,
            ObjectWatch(number, path),
            self._draws,
            # What decides whether an object is any of our business never changes.
            keeps=lambda obj: path in (CLASSES, CLAIMS) or driver_of(obj) in self._drivers,
            on_change=lambda key, before, now: self._on_change(path, key, before, now),
            on_synced=self._look_at_all,
        )

    def _on_change(self, path: str, key: str, before: Json | None, now: Json | None) -> None:
        if path == ATTACHMENTS and (before is None) != (now is None):
            self._count(volume_of(before or now or {}), -1 if now is None else 1)
        self._look_at(path, key)

    def _look_at_all(self) -> None:
        for path, store in (
            (CLAIMS, self._claims),
            (VOLUMES, self._volumes),
            (ATTACHMENTS, self._attachments),
        ):
            for key in tuple(store):
                self._look_at(path, key)

    def _look_at(self, path: str, key: str) -> None:
        """Begin what an object needs, unless that is under way.

        Nothing is done before all is known. Source: controller.go, Run: WaitForCacheSync.
        """
        if not all(informer.is_synced for informer in self._informers):
            return
        if path == CLASSES:
            self._look_at_all()
        elif path == CLAIMS:
            self._begin("provision", key, self._wants_provision, self._provision)
            self._begin("resize", key, self._wants_resize, self._resize)
        elif path == VOLUMES:
            self._begin("delete", key, self._wants_deletion, self._delete)
        else:
            self._begin("attach", key, self._wants_attachment, self._attach)
            self._begin("detach", key, self._wants_detachment, self._detach)

    def _count(self, volume: str, change: int) -> None:
        """Count the attachments of a volume; one without any may be deleted."""
        self._attached[volume] += change
        if not self._attached[volume]:
            del self._attached[volume]
            self._look_at(VOLUMES, volume)

    def _begin(self, verb: str, key: str, wanted: Wanted, work: Operation) -> None:
        name = f"{verb}/{key}"
        if name not in self._busy and wanted(key):
            self._busy[name] = asyncio.create_task(self._persist(name, key, wanted, work))

    async def _persist(self, name: str, key: str, wanted: Wanted, work: Operation) -> None:
        """Work on one object; a bug that it brings out is tried again, and harms no other."""
        try:
            await self._background.persist(name, lambda: self._work(name, key, wanted, work))
        finally:
            self._busy.pop(name, None)

    async def _work(self, name: str, key: str, wanted: Wanted, work: Operation) -> None:
        """Do one thing until it is done, or not wanted any more; failures back off."""
        tries = 0
        while wanted(key):
            try:
                async with self._slots:
                    done = not wanted(key) or await work(key)
            except SetupError as error:
                log.debug("%s: %s", name, error)
                done = False
            if done:
                return
            await asyncio.sleep(min(RETRY_FIRST_S * 2**tries, RETRY_MAX_S))
            tries += 1

    async def _delay(self, kind: str, key: str, driver: CSIDriver) -> None:
        distribution = driver.attach_delay if kind == "attach" else driver.provision_delay
        # Not hash(), which differs from process to process: a delay belongs to what is done.
        at = int.from_bytes(hashlib.sha256(f"{kind}/{key}".encode()).digest()[:6], "big")
        await asyncio.sleep(distribution.sample(self._draws.uniform(0, _STREAM, at)) / 1e9)

    # ---- volumes ----

    def _driver_of_claim(self, claim: Json) -> CSIDriver | None:
        notes = claim["metadata"].get("annotations") or {}
        return self._drivers.get(notes.get(PROVISIONER_NOTE, ""))

    def _wants_provision(self, key: str) -> bool:
        """Source: controller.go, shouldProvision."""
        claim = self._claims.get(key)
        if claim is None or claim["spec"].get("volumeName") or is_deleting(claim):
            return False
        if claim.get("status", {}).get("phase") != "Pending" or not self._driver_of_claim(claim):
            return False
        storage_class = self._classes.get(claim["spec"].get("storageClassName") or "")
        if storage_class is None or f"pvc-{claim['metadata']['uid']}" in self._volumes:
            return False
        late = storage_class.get("volumeBindingMode") == "WaitForFirstConsumer"
        return not late or SELECTED_NODE in (claim["metadata"].get("annotations") or {})

    async def _provision(self, key: str) -> bool:
        """Make the volume of a claim. Source: controller.go, provisionClaimOperation."""
        claim = self._claims[key]
        driver = self._driver_of_claim(claim)
        assert driver is not None, key
        storage_class = self._classes[claim["spec"]["storageClassName"]]
        about = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        text = f'External provisioner is provisioning volume for claim "{about}"'
        await self._event(claim, driver, "Normal", "Provisioning", text)
        await self._delay("provision", key, driver)
        notes = claim["metadata"].get("annotations") or {}
        if PROVISION_ERROR in notes:
            class_name = storage_class["metadata"]["name"]
            text = f'failed to provision volume with StorageClass "{class_name}": rpc error: '
            text += f"code = Internal desc = {notes[PROVISION_ERROR]}"
            await self._event(claim, driver, "Warning", "ProvisioningFailed", text)
            return False
        topology = await self._topology(driver, notes.get(SELECTED_NODE, ""))
        volume = persistent_volume(claim, storage_class, driver.name, topology, self._run)
        answer = await self._api.request("POST", VOLUMES, body=volume)
        if not answer.ok and answer.code != 409:
            log.debug("no volume for %s: %s", about, answer.message)
            return False
        if answer.ok:
            self._volumes.setdefault(volume["metadata"]["name"], answer.body)
        text = f"Successfully provisioned volume {volume['metadata']['name']}"
        await self._event(claim, driver, "Normal", "ProvisioningSucceeded", text)
        return True

    async def _topology(self, driver: CSIDriver, node: str) -> dict[str, str]:
        """Return where a volume is reachable from: the segment of the node that was chosen."""
        if not driver.topology_keys:
            return {}
        if not node:  # Immediate: any node that has the driver
            answer = await self._api.request("GET", CSI_NODES)
            for each in answer.body.get("items") or ():
                if any(found["name"] == driver.name for found in each["spec"].get("drivers") or ()):
                    node = each["metadata"]["name"]
                    break
        answer = await self._api.request("GET", f"/api/v1/nodes/{node}")
        labels = answer.body.get("metadata", {}).get("labels") or {}
        return {key: labels[key] for key in driver.topology_keys if key in labels}

    def _wants_resize(self, key: str) -> bool:
        claim = self._claims.get(key)
        if claim is None or claim["spec"].get("volumeName", "") not in self._volumes:
            return False
        return wants_resize(claim)

    async def _resize(self, key: str) -> bool:
        """Grow a volume, or have it expanded on its node once more.

        Source: external-resizer/pkg/controller/controller.go, expand_and_recover.go.
        """
        claim = self._claims[key]
        name = claim["spec"]["volumeName"]
        volume = self._volumes[name]
        driver = self._drivers[driver_of(volume)]
        if is_infeasible_on_node(claim):
            return await self._write_claim(key, claim, pending_on_node(claim))
        size = claim["spec"]["resources"]["requests"]["storage"]
        text = f"External resizer is resizing volume {name}"
        await self._event(claim, driver, "Normal", "Resizing", text)
        if not await self._write_claim(key, claim, in_progress(claim, size, _now())):
            return False
        await self._delay("resize", f"{key}/{size}", driver)
        body: Json = {"metadata": {"uid": volume["metadata"]["uid"]}}
        body["spec"] = {"capacity": {"storage": size}}
        path = f"{VOLUMES}/{name}"
        answer = await self._api.request("PATCH", path, body=body)
        if not answer.ok:
            return False
        claim = self._claims.get(key) or claim
        if driver.node_expansion and volume["spec"].get("volumeMode") != "Block":
            done = await self._write_claim(key, claim, pending_on_node(claim, _now()))
            what = ("FileSystemResizeRequired", "Require file system resize of volume on node")
        else:
            done = await self._write_claim(key, claim, grown(claim, size))
            what = ("VolumeResizeSuccessful", "Resize volume succeeded")
        if done:
            await self._event(claim, driver, "Normal", *what)
        return done

    async def _write_claim(self, key: str, claim: Json, status: Json) -> bool:
        """Change the status of a claim; return whether that could be done."""
        body = {"metadata": {"uid": claim["metadata"]["uid"]}, "status": status}
        namespace, _, name = key.partition("/")
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}/status"
        answer = await self._api.request("PATCH", path, body=body)
        if answer.ok and key in self._claims:
            self._claims[key] = trimmed(answer.body)
        return answer.ok

    def _wants_deletion(self, key: str) -> bool:
        """Source: controller.go, shouldDelete; csi_handler.go, SyncNewOrUpdatedPersistentVolume."""
        volume = self._volumes.get(key)
        if volume is None or key in self._attached:
            return False
        notes = volume["metadata"].get("annotations") or {}
        if notes.get(PROVISIONED_BY) in self._drivers:
            released = volume.get("status", {}).get("phase") == "Released"
            if released and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete":
                return True
        return is_deleting(volume) and attacher_finalizer(driver_of(volume)) in finalizers_of(
            volume
        )

    async def _delete(self, key: str) -> bool:
        """Delete a volume that was released. Source: controller.go, deleteVolumeOperation."""
        volume = self._volumes[key]
        csi = volume["spec"]["csi"]
        driver = self._drivers[csi["driver"]]
        if not is_deleting(volume):
            await self._delay("delete", key, driver)
            options = {"preconditions": {"uid": volume["metadata"]["uid"]}}
            await self._api.request("DELETE", f"{VOLUMES}/{key}", body=options)
        return await self._finalize(VOLUMES, volume, remove=self._our_finalizers(volume))

    # ---- attachments ----

    def _wants_attachment(self, key: str) -> bool:
        found = self._attachments.get(key)
        if found is None or is_deleting(found):
            return False
        return not found.get("status", {}).get("attached", False)

    async def _attach(self, key: str) -> bool:
        """Attach a volume. Source: csi_handler.go, csiAttach, markAsAttached."""
        found = self._attachments[key]
        driver = self._drivers[found["spec"]["attacher"]]
        finalizer = attacher_finalizer(driver.name)
        notes = {"csi.alpha.kubernetes.io/node-id": found["spec"]["nodeName"]}
        volume = self._volumes.get(volume_of(found))
        if volume is not None:  # first: it must not go while it is attached
            await self._finalize(VOLUMES, volume, add=finalizer)
        if not await self._finalize(ATTACHMENTS, found, add=finalizer, notes=notes):
            return False
        await self._delay("attach", key, driver)
        error = self._attach_error(volume, found, driver)
        status: Json = {"attached": True, "attachError": error}
        if error:
            status = {"attached": False, "attachError": {"time": _now(), **error}}
        path = f"{ATTACHMENTS}/{key}/status"
        answer = await self._api.request("PATCH", path, body={"status": status})
        if answer.ok and key in self._attachments:
            self._attachments[key] = answer.body
        return answer.ok and not error

    def _attach_error(
        self, volume: Json | None, attachment: Json, driver: CSIDriver
    ) -> Json | None:
        """Return what a driver says that cannot attach: the claim's annotation, or a full node."""
        ref = (volume or {}).get("spec", {}).get("claimRef") or {}
        claim = self._claims.get(f"{ref.get('namespace')}/{ref.get('name')}") or {"metadata": {}}
        declared = (claim["metadata"].get("annotations") or {}).get(ATTACH_ERROR)
        declared = declared or self._attach_problem(attachment["spec"]["nodeName"])
        if declared:
            return {"message": f"rpc error: code = Internal desc = {declared}"}
        limit = driver.count_at(time.monotonic_ns() - self._began_ns)
        if not limit:
            return None
        node = attachment["spec"]["nodeName"]
        taken = sum(
            each["spec"]["attacher"] == driver.name
            and each["spec"]["nodeName"] == node
            and bool(each.get("status", {}).get("attached"))
            for each in self._attachments.values()
        )
        if taken < limit:
            return None
        text = f"rpc error: code = ResourceExhausted desc = {node} has {taken} volumes attached"
        return {"message": text, "errorCode": RESOURCE_EXHAUSTED}

    def _wants_detachment(self, key: str) -> bool:
        found = self._attachments.get(key)
        if found is None or not is_deleting(found):
            return False
        return attacher_finalizer(found["spec"]["attacher"]) in finalizers_of(found)

    async def _detach(self, key: str) -> bool:
        """Detach a volume. Source: csi_handler.go, csiDetach, markAsDetached."""
        found = self._attachments[key]
        driver = self._drivers[found["spec"]["attacher"]]
        await self._delay("attach", f"{key}/detach", driver)
        path = f"{ATTACHMENTS}/{key}/status"
        body = {"status": {"attached": False, "attachError": None, "detachError": None}}
        await self._api.request("PATCH", path, body=body)
        finalizer = attacher_finalizer(driver.name)
        return await self._finalize(ATTACHMENTS, found, remove=[finalizer])

    # ---- requests ----

    async def _finalize(
        self,
        path: str,
        obj: Json,
        *,
        add: str = "",
        remove: list[str] | None = None,
        notes: dict[str, str] | None = None,
    ) -> bool:
        """Change the finalizers of an object as it is now; return whether they are as wanted."""
        name = obj["metadata"]["name"]
        answer = await self._api.request("GET", f"{path}/{name}")
        if answer.code == 404:
            return remove is not None
        if not answer.ok:
            return False
        meta = answer.body["metadata"]
        if meta["uid"] != obj["metadata"]["uid"]:  # another one has the name by now
            return remove is not None
        old = finalizers_of(answer.body)
        new = [each for each in old if each not in (remove or ())]
        if add and add not in new:
            new.append(add)
        if new == old:
            return True
        # Others change finalizers too: with the version theirs are not lost, and we come again.
        change: Json = {"resourceVersion": meta["resourceVersion"], "finalizers": new or None}
        if add or not is_provisioned(obj):  # the marks of a volume that we made stay on it
            mark = object_mark(self._run, "", name) if add else None
            change["labels"] = {STORAGE_OF: self._run if add else None}
            change["annotations"] = {OWNER_ANNOTATION: mark, **(notes or {})}
        answer = await self._api.request("PATCH", f"{path}/{name}", body={"metadata": change})
        return answer.ok or answer.code == 404

    async def _event(
        self, claim: Json, driver: CSIDriver, kind: str, reason: str, message: str
    ) -> None:
        self._numbers += 1
        name = f"{claim['metadata']['name']}.{time.time_ns():x}{self._numbers:x}"
        component = f"{driver.name}_fleet-csi-controller"
        event = claim_event(claim, name, component, _now(), (kind, reason, message))
        path = f"/api/v1/namespaces/{claim['metadata']['namespace']}/events"
        await self._api.request("POST", path, body=event)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# ---- of a run ----


def drivers_of(
    models: Iterable[NodeModel], fidelity: Fidelity = Fidelity.KUBELET
) -> dict[str, CSIDriver]:
    """Return the CSI drivers of a run by name. Light nodes expand nothing: the controller does."""
    found = {driver.name: driver for model in models for driver in model.csi_drivers}
    if fidelity is Fidelity.KUBELET:
        return found
    change = {"node_expansion": False}
    return {name: each.model_copy(update=change) for name, each in found.items()}


async def check_drivers(api: Api, models: Iterable[NodeModel], machines: Collection[str]) -> None:
    """Raise SetupError if a node that no fleet is the kubelet of has a driver of the run.

    A driver is known by its name alone: the volumes of a machine's driver of the same name would be
    taken for simulated ones.
    """
    drivers = drivers_of(models)
    if not drivers or not machines:
        return
    async for page in api.pages(CSI_NODES, "CSINodes"):
        for item in page:
            name = item["metadata"]["name"]
            theirs = {each["name"] for each in item["spec"].get("drivers") or ()}
            shared = sorted(theirs.intersection(drivers))
            if name in machines and shared:
                raise SetupError(
                    f"CSI driver {shared[0]} is installed in this cluster (on node {name}): fleet "
                    "would act on its volumes; give the simulated driver of the profile another "
                    "name"
                )


async def simulate_csi(
    cluster: Cluster,
    models: Iterable[NodeModel],
    settings: Settings,
    background: Background,
    run: str,
    attach_problem: Callable[[str], str],
) -> None:
    """Be the controller of all CSI drivers of a run until cancelled; one shard is, for all.

    `attach_problem` says of a node by its name why nothing can be attached there, "" if it can.
    At the end our finalizers are taken off: nothing may wait for us on a cluster that stays.
    """
    drivers = drivers_of(models, settings.fidelity)
    if not drivers or settings.shard:
        return
    api = cluster.api(PURPOSE, USER_AGENT)
    patient = cluster.api(PURPOSE, USER_AGENT, PATIENCE_S)
    controller = CSIController(
        api, drivers.values(), Draws(settings.seed), background, run, attach_problem
    )
    try:
        await background.persist(PURPOSE, controller.run)
    finally:
        with contextlib.suppress(SetupError, TimeoutError):
            async with asyncio.timeout(RELEASE_MAX_S):
                await controller.release(patient)
