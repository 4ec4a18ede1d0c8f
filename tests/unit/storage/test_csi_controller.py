"""The controller side of simulated storage against a small server that keeps finalizers."""

import asyncio
import contextlib
import copy
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from world.cluster_fakes import FakeApi, Json

from fleet.background import Background
from fleet.clock import Draws
from fleet.cluster.api_client import Answer
from fleet.cluster.cleanup import CSI_NODES
from fleet.cluster.leftovers import (
    ATTACHMENTS,
    PROVISIONED_BY,
    PROVISIONER_FINALIZER,
    VOLUMES,
    attacher_finalizer,
)
from fleet.errors import SetupError
from fleet.profile.distribution import ZERO
from fleet.profile.loader import load_mix
from fleet.profile.pod_behavior import CSIDriver
from fleet.profile.settings import Fidelity
from fleet.storage.csi_controller import CLAIMS, CLASSES, CSIController, check_drivers, drivers_of
from fleet.storage.csi_objects import persistent_volume
from fleet.wire.http2.messages import Request, Response, StreamOpened

Message = StreamOpened | bytes | Response
BACKGROUND = Background(print)
DRIVER = CSIDriver(name="csi.x", provision_delay=ZERO, attach_delay=ZERO)
ATTACHER = "external-attacher/csi-x"
FAST: Json = {"metadata": {"name": "fast"}, "provisioner": "csi.x", "reclaimPolicy": "Delete"}
IN_DEFAULT = "/api/v1/namespaces/default/persistentvolumeclaims/"
KINDS = {CLAIMS: IN_DEFAULT, VOLUMES: f"{VOLUMES}/", ATTACHMENTS: f"{ATTACHMENTS}/"}
KINDS[CLASSES] = f"{CLASSES}/"


class StorageApi(FakeApi):
    """Watches, and objects that go only with their last finalizer."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: dict[str, asyncio.Queue[Json]] = {}
        self.told: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()  # by the controller, of what was told
        self.volumes_come = asyncio.Event()
        self.volumes_come.set()

    def tell(self, kind: str, path: str) -> None:
        for resource, start in KINDS.items():
            if path.startswith(start) and resource in self.queues:
                obj = copy.deepcopy(self.objects[path])
                self.put_event(resource, kind, obj)

    def put_event(self, resource: str, kind: str, obj: Json) -> None:
        self.queues[resource].put_nowait({"type": kind, "object": obj})
        self.told[resource] += 1

    async def stream(self, request: Request) -> AsyncGenerator[Message, None]:
        """A watch-list that never ends: what there is, a bookmark, and what changes."""
        path, _, query = request.path.decode().partition("?")
        assert "sendInitialEvents=true" in query
        self.queues[path] = asyncio.Queue()
        for name in list(self.objects):
            if name.startswith(KINDS[path]):
                self.tell("ADDED", name)
        notes = {"k8s.io/initial-events-end": "true"}
        end = {"metadata": {"resourceVersion": "1", "annotations": notes}}
        self.put_event(path, "BOOKMARK", end)
        yield StreamOpened(0, 0)
        while True:
            event = await self.queues[path].get()
            if path == VOLUMES:
                await self.volumes_come.wait()
            yield orjson.dumps(event) + b"\n"
            self.taken[path] += 1  # it comes back for the next one

    def is_all_taken(self) -> bool:
        return len(self.queues) == len(KINDS) and self.taken == self.told

    def put(self, path: str, **body: Any) -> Json:
        obj = super().put(path, **body)
        self.tell("ADDED", path)
        return obj

    def _patch(self, path: str, asked: Json, sent: Json) -> Answer:
        path = path.removesuffix("/status")
        sent.get("metadata", {}).pop("resourceVersion", None)
        answer = super()._patch(path, asked, sent)
        if answer.ok:
            gone = path not in self.objects
            self.objects.setdefault(path, answer.body)
            self.tell("DELETED" if gone else "MODIFIED", path)
            if gone:
                del self.objects[path]
        return answer

    def _delete(self, path: str, asked: Json, sent: Json) -> Answer:
        del asked, sent
        obj = self.objects[path]
        if not obj["metadata"].get("finalizers"):
            self.tell("DELETED", path)
            del self.objects[path]
        else:
            obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.tell("MODIFIED", path)
        return self._answer(200, obj)

    def delete(self, path: str) -> None:
        self._delete(path, {}, {})

    def reasons(self) -> list[str]:
        return [obj["reason"] for path, obj in self.objects.items() if "/events/" in path]


def add_claim(api: StorageApi, name: str, **notes: str) -> str:
    metadata = {
        "namespace": "default",
        "annotations": {"volume.kubernetes.io/storage-provisioner": "csi.x", **notes},
    }
    spec = {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}
    path = IN_DEFAULT + name
    return str(
        api.put(path, metadata=metadata, spec=spec, status={"phase": "Pending"})["metadata"]["uid"]
    )


def add_volume(api: StorageApi, name: str, **more: Any) -> str:
    claim = {
        "metadata": {"namespace": "default", "name": "c", "uid": name, "resourceVersion": "1"},
        "spec": {"resources": {"requests": {"storage": "1Gi"}}},
    }
    volume = persistent_volume(claim, FAST, "csi.x", {}, "r1")
    path = f"{VOLUMES}/pvc-{name}"
    metadata = {key: volume["metadata"][key] for key in ("annotations", "finalizers")}
    api.put(path, metadata=metadata, spec=volume["spec"], **more)
    return path


def add_attachment(api: StorageApi, name: str, volume: str) -> str:
    source = {"persistentVolumeName": volume.rpartition("/")[2]}
    path = f"{ATTACHMENTS}/{name}"
    api.put(path, spec={"attacher": "csi.x", "nodeName": "n", "source": source})
    return path


def play(
    api: StorageApi,
    *steps: Callable[[], object],
    driver: CSIDriver = DRIVER,
    problem: Callable[[str], str] = lambda _node: "",
) -> CSIController:
    """Run the controller; each step is given until it holds, an action holds at once."""
    for books in (api.queues, api.told, api.taken):
        books.clear()
    controller = CSIController(api, [driver], Draws(1), BACKGROUND, "r1", problem)

    async def run() -> None:
        task = asyncio.create_task(controller.run())
        for step in steps:
            for _ in range(2_000):
                if step() is not False:
                    break
                await asyncio.sleep(0)
            else:
                raise AssertionError(f"never: {step}")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    return controller


def status_of(api: StorageApi, path: str) -> Json:
    found: Json = api.objects[path].get("status", {})
    return found


def is_attached(api: StorageApi, path: str) -> bool:
    return bool(status_of(api, path).get("attached"))


def test_a_machine_that_cannot_attach_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fleet.storage.csi_controller.RETRY_FIRST_S", 0)
    api = cluster()
    attachment = add_attachment(api, "a", add_volume(api, "one"))
    problems = {"n": "no slot is free"}

    def is_healed() -> None:
        status = status_of(api, attachment)
        assert status["attachError"]["message"].endswith("desc = no slot is free")
        assert not status["attached"]
        problems.clear()

    play(
        api,
        lambda: "attachError" in status_of(api, attachment),
        is_healed,
        lambda: is_attached(api, attachment),
        problem=lambda node: problems.get(node, ""),
    )
    assert not status_of(api, attachment).get("attachError")


def cluster() -> StorageApi:
    api = StorageApi()
    api.put(f"{CLASSES}/fast", **{k: v for k, v in FAST.items() if k != "metadata"})
    return api


def test_a_volume_is_made_for_a_claim_and_once_only() -> None:
    api = cluster()
    uid = add_claim(api, "one")
    made = f"{VOLUMES}/pvc-{uid}"
    play(api, lambda: "ProvisioningSucceeded" in api.reasons())
    assert api.objects[made]["spec"]["claimRef"]["uid"] == uid
    play(api, api.is_all_taken)  # a controller that starts later
    assert api.reasons() == ["Provisioning", "ProvisioningSucceeded"]


def test_a_claim_waits_for_its_first_consumer() -> None:
    api = StorageApi()
    api.put(f"{CLASSES}/fast", provisioner="csi.x", volumeBindingMode="WaitForFirstConsumer")
    uid = add_claim(api, "one")
    made = f"{VOLUMES}/pvc-{uid}"

    def choose() -> None:
        assert made not in api.objects
        note = {"volume.kubernetes.io/selected-node": "n"}
        api._patch(IN_DEFAULT + "one", {}, {"metadata": {"annotations": note}})

    play(
        api,
        api.is_all_taken,
        choose,
        lambda: made in api.objects,
    )


def test_claims_of_others_are_left_alone() -> None:
    api = cluster()
    metadata = {"namespace": "default", "annotations": {}}
    spec = {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}
    api.put(IN_DEFAULT + "other", metadata=metadata, spec=spec, status={"phase": "Pending"})
    play(api, api.is_all_taken)
    assert not [path for path in api.objects if path.startswith(VOLUMES)]


def test_attach_then_detach_with_finalizers() -> None:
    api = cluster()
    volume = add_volume(api, "v", status={"phase": "Bound"})
    attachment = add_attachment(api, "a", volume)

    play(api, lambda: is_attached(api, attachment))
    assert ATTACHER in api.objects[attachment]["metadata"]["finalizers"]
    assert ATTACHER in api.objects[volume]["metadata"]["finalizers"]
    play(
        api,
        api.is_all_taken,
        lambda: api.delete(attachment),
        lambda: attachment not in api.objects,
    )


def test_a_released_volume_goes_once_nothing_is_attached() -> None:
    api = cluster()
    volume = add_volume(api, "v", status={"phase": "Bound"})
    attachment = add_attachment(api, "a", volume)

    def release() -> None:
        api._patch(volume, {}, {"status": {"phase": "Released"}})

    def still_there() -> None:
        assert "deletionTimestamp" not in api.objects[volume]["metadata"]

    play(
        api,
        lambda: is_attached(api, attachment),
        release,
        still_there,
        lambda: api.delete(attachment),
        lambda: volume not in api.objects,
    )


def test_a_kept_volume_stays() -> None:
    api = cluster()
    volume = add_volume(api, "v", status={"phase": "Released"})
    api.objects[volume]["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
    other = add_volume(api, "w", status={"phase": "Released"})  # seen after it, and as old
    play(api, lambda: other not in api.objects, lambda: None)
    assert volume in api.objects


def test_nothing_is_done_before_all_is_known() -> None:
    """Else the volume that a claim has would be made, and told of, once more."""
    api = cluster()
    uid = add_claim(api, "one")
    add_volume(api, uid, status={"phase": "Bound"})
    api.volumes_come.clear()

    def volumes_come() -> None:
        assert not api.log
        api.volumes_come.set()

    play(api, lambda: api.taken[CLAIMS] == api.taken[CLASSES] == 2, volumes_come, api.is_all_taken)
    assert not api.log


FOREIGN_CSI = {"driver": "csi.theirs", "volumeHandle": "vol-1"}


def test_volumes_and_attachments_of_other_drivers_are_neither_kept_nor_touched() -> None:
    """Every external provisioner has the same finalizer on its volumes."""
    api = cluster()
    paths = []
    for name, spec, provisioner in (
        ("csi", {"csi": FOREIGN_CSI}, "csi.theirs"),
        ("nfs", {"nfs": {"server": "s", "path": "/"}}, "nfs.theirs"),
        ("liar", {"csi": FOREIGN_CSI}, "csi.x"),
    ):
        annotations = {PROVISIONED_BY: provisioner}
        metadata = {"annotations": annotations, "finalizers": [PROVISIONER_FINALIZER]}
        policy = {"persistentVolumeReclaimPolicy": "Delete"}
        path = f"{VOLUMES}/{name}"
        api.put(path, metadata=metadata, spec={**spec, **policy}, status={"phase": "Released"})
        paths.append(path)
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    for name, attacher in (("theirs", "csi.theirs"), ("like-ours", "csi-x")):
        source = {"persistentVolumeName": "csi"}
        path = f"{ATTACHMENTS}/{name}"
        finalizers = {"finalizers": [attacher_finalizer(attacher)]}  # of csi-x the same as of csi.x
        api.put(
            path,
            metadata={**leaving, **finalizers},
            spec={"attacher": attacher, "nodeName": "n", "source": source},
        )
        paths.append(path)
    before = copy.deepcopy({path: api.objects[path] for path in paths})
    ours = add_volume(api, "v", status={"phase": "Bound"})

    def come_later() -> None:
        """Let the watch tell of each, too."""
        for path in paths:
            api.tell("MODIFIED", path)

    controller = play(
        api,
        api.is_all_taken,
        come_later,
        lambda: bool(add_attachment(api, "a", ours)),
        lambda: is_attached(api, f"{ATTACHMENTS}/a"),
    )
    asyncio.run(controller.release(api))
    assert {path: api.objects[path] for path in paths} == before
    asked = {path for _method, path in api.log}
    assert not asked.intersection(paths)
    assert PROVISIONER_FINALIZER not in controller_finalizers(api, ours)


def test_a_volume_that_another_made_under_the_name_keeps_its_finalizer() -> None:
    api = cluster()
    volume = add_volume(api, "v", status={"phase": "Bound"})
    controller = play(api, api.is_all_taken)
    api.queues.clear()
    metadata = {"finalizers": [PROVISIONER_FINALIZER]}
    api.put(volume, metadata=metadata, spec={"csi": FOREIGN_CSI})
    asyncio.run(controller.release(api))
    assert controller_finalizers(api, volume) == [PROVISIONER_FINALIZER]


def test_a_provisioner_s_finalizer_on_a_volume_that_none_of_ours_made_stays() -> None:
    api = cluster()
    volume = add_volume(api, "v", status={"phase": "Bound"})
    del api.objects[volume]["metadata"]["annotations"]
    controller = play(api, api.is_all_taken)
    asyncio.run(controller.release(api))
    assert controller_finalizers(api, volume) == [PROVISIONER_FINALIZER]


@pytest.mark.parametrize(
    ("nodes", "driver", "is_refused"),
    [(("real",), "csi.x", True), (("real",), "csi.theirs", False), (("other",), "csi.x", False)],
)
def test_a_driver_that_is_installed_is_not_simulated(
    nodes: tuple[str, ...], driver: str, *, is_refused: bool
) -> None:
    api = FakeApi()
    api.put(f"{CSI_NODES}/real", spec={"drivers": [{"name": driver}]})
    models = [replace(load_mix().model_of(0), csi_drivers=(DRIVER,))]
    expected = (
        pytest.raises(SetupError, match=r"csi\.x is installed in this cluster \(on node real\)")
        if is_refused
        else contextlib.nullcontext()
    )
    with expected:
        asyncio.run(check_drivers(api, models, nodes))


def test_release_takes_only_our_finalizers() -> None:
    api = cluster()
    volume = add_volume(api, "v", status={"phase": "Bound"})
    api.objects[volume]["metadata"]["finalizers"].append("kubernetes.io/pv-protection")
    attachment = add_attachment(api, "a", volume)
    controller = play(
        api,
        lambda: is_attached(api, attachment),
        lambda: ATTACHER in controller_finalizers(api, volume),
        lambda: None,
    )
    asyncio.run(controller.release(api))
    assert controller_finalizers(api, volume) == ["kubernetes.io/pv-protection"]


def controller_finalizers(api: StorageApi, path: str) -> list[str]:
    return list(api.objects[path]["metadata"].get("finalizers") or ())


def test_finalizers_are_named_after_the_driver() -> None:
    assert attacher_finalizer("ebs.csi.aws.com") == "external-attacher/ebs-csi-aws-com"


def test_a_node_takes_no_more_volumes_than_its_driver_allows() -> None:
    api = cluster()
    one, two = (add_volume(api, name, status={"phase": "Bound"}) for name in ("v", "w"))
    first = add_attachment(api, "a", one)

    second = f"{ATTACHMENTS}/b"
    play(
        api,
        lambda: is_attached(api, first),
        lambda: bool(add_attachment(api, "b", two)),
        lambda: "attachError" in status_of(api, second),
        driver=DRIVER.model_copy(update={"allocatable_count": 1}),
    )
    status = status_of(api, second)
    assert status["attachError"] == {
        **status["attachError"],
        "errorCode": 8,
        "message": "rpc error: code = ResourceExhausted desc = n has 1 volumes attached",
    }
    assert not status["attached"]


def bound_claim(api: StorageApi, wanted: str, **status: Any) -> str:
    """Add a claim with a volume of 1Gi; return the path of the claim."""
    volume = add_volume(api, "one").rpartition("/")[2]
    resources = {"requests": {"storage": wanted}}
    told = {"phase": "Bound", "capacity": {"storage": "1Gi"}, **status}
    path = f"{IN_DEFAULT}c"
    metadata = {"namespace": "default"}
    spec = {"volumeName": volume, "resources": resources}
    api.put(path, metadata=metadata, spec=spec, status=told)
    return path


NODE_EXPANDS = DRIVER.model_copy(update={"node_expansion": True})
OTHER = {"type": "ModifyingVolume", "status": "True"}


def test_a_volume_grows() -> None:
    api = cluster()
    path = bound_claim(api, "2Gi", conditions=[OTHER])
    play(api, lambda: "VolumeResizeSuccessful" in api.reasons(), api.is_all_taken)
    status = api.objects[path]["status"]
    assert status["capacity"] == status["allocatedResources"] == {"storage": "2Gi"}
    assert status["conditions"] == [OTHER]
    assert "allocatedResourceStatuses" not in status
    assert api.objects[f"{VOLUMES}/pvc-one"]["spec"]["capacity"] == {"storage": "2Gi"}
    assert api.reasons() == ["Resizing", "VolumeResizeSuccessful"]


def test_a_volume_that_its_node_expands_waits_for_it() -> None:
    api = cluster()
    path = bound_claim(api, "2Gi", conditions=[OTHER])
    required = "FileSystemResizeRequired"
    play(api, lambda: required in api.reasons(), api.is_all_taken, driver=NODE_EXPANDS)
    status = api.objects[path]["status"]
    assert status["capacity"] == {"storage": "1Gi"}
    assert status["allocatedResourceStatuses"] == {"storage": "NodeResizePending"}
    kinds = [each["type"] for each in status["conditions"]]
    assert kinds == ["ModifyingVolume", "Resizing", "FileSystemResizePending"]
    assert api.objects[f"{VOLUMES}/pvc-one"]["spec"]["capacity"] == {"storage": "2Gi"}
    play(api, api.is_all_taken, driver=NODE_EXPANDS)  # a controller that starts later
    assert api.reasons() == ["Resizing", required]


@pytest.mark.parametrize("status", ["", "NodeResizeInfeasible"])
def test_claims_of_other_drivers_do_not_grow(status: str) -> None:
    api = cluster()
    path = bound_claim(api, "2Gi", allocatedResourceStatuses={"storage": status})
    api.objects[f"{VOLUMES}/pvc-one"]["spec"]["csi"]["driver"] = "csi.theirs"
    before = copy.deepcopy(api.objects)
    play(api, api.is_all_taken, driver=NODE_EXPANDS)
    assert api.objects == before
    api.objects[f"{VOLUMES}/pvc-one"]["spec"]["csi"]["driver"] = "csi.x"
    play(api, lambda: api.objects[path] != before[path], driver=NODE_EXPANDS)


def test_the_controller_does_it_all_for_nodes_that_mount_nothing() -> None:
    models = [replace(load_mix().model_of(0), csi_drivers=(NODE_EXPANDS,))]
    assert drivers_of(models, Fidelity.KUBELET) == {"csi.x": NODE_EXPANDS}
    assert drivers_of(models, Fidelity.LIGHT) == {"csi.x": DRIVER}


def test_a_raw_block_device_needs_nothing_of_its_node() -> None:
    api = cluster()
    bound_claim(api, "2Gi")
    api.objects[f"{VOLUMES}/pvc-one"]["spec"]["volumeMode"] = "Block"
    play(api, lambda: "VolumeResizeSuccessful" in api.reasons(), driver=NODE_EXPANDS)
    assert "FileSystemResizeRequired" not in api.reasons()


def test_what_a_node_gave_up_it_is_to_try_again() -> None:
    api = cluster()
    infeasible = {"storage": "NodeResizeInfeasible"}
    path = bound_claim(api, "2Gi", allocatedResourceStatuses=infeasible)

    def is_pending() -> bool:
        status: Json = api.objects[path]["status"]["allocatedResourceStatuses"]
        return status == {"storage": "NodeResizePending"}

    play(api, is_pending, driver=NODE_EXPANDS)
    assert not api.reasons()


def test_a_claim_that_brings_a_bug_out_is_tried_again_and_harms_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = cluster()
    odd, good = add_claim(api, "odd"), add_claim(api, "good")
    waits: list[float] = []

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        api.objects[f"{IN_DEFAULT}odd"]["spec"] = api.objects[f"{IN_DEFAULT}good"]["spec"]
        api.tell("MODIFIED", f"{IN_DEFAULT}odd")
        await asyncio.sleep(0)

    background = Background(print, sleep=wait)
    monkeypatch.setattr("test_csi_controller.BACKGROUND", background)
    del api.objects[f"{IN_DEFAULT}odd"]["spec"]["resources"]
    play(api, *(lambda uid=uid: f"{VOLUMES}/pvc-{uid}" in api.objects for uid in (good, odd)))
    assert waits == [1.0]
    assert background.bugs == {"provision/default/odd": 1}
