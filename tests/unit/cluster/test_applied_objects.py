"""What a killed scenario leaves: `fleet clean` names all of it, removes it, and nothing else."""

import asyncio
from typing import Any

import orjson
import pytest
from world.cluster_fakes import FakeApi, no_sleep

from fleet.cluster.api_client import Answer
from fleet.cluster.cleanup import Cleaned, clean_run
from fleet.cluster.leftovers import (
    APPLIED_ANNOTATION,
    APPLIED_BY,
    ATTACHMENTS,
    PROVISIONED_BY,
    PROVISIONER_FINALIZER,
    STORAGE_OF,
    VOLUMES,
    object_mark,
    read_noted,
)
from fleet.cluster.ownership import NODES, OWNER_ANNOTATION
from fleet.cluster.runs import RUN_LEASES, RunLease, list_runs
from fleet.errors import Exit, SetupError
from fleet.run.applied import Applied
from fleet.run.clean_command import Choice, clean
from fleet.scenario.scenario import Named

Json = dict[str, Any]
RUN = "20261123-010203-abcd"
CORE, APPS = "/api/v1", "/apis/apps/v1"
PODS, MAPS, CLAIMS = (
    f"{CORE}/namespaces/default/{each}" for each in ("pods", "configmaps", "persistentvolumeclaims")
)
SETS = f"{APPS}/namespaces/other/statefulsets"
CLAIMS_OF_SETS = f"{CORE}/namespaces/other/persistentvolumeclaims"


class KilledError(BaseException):
    """The process is gone: nothing of it runs any more, no `finally` either."""


class Cluster(FakeApi):
    """Knows some kinds; a StatefulSet makes a claim. Its client can be killed after a request."""

    def __init__(self) -> None:
        super().__init__()
        kinds = {"pods": "Pod", "configmaps": "ConfigMap", "namespaces": "Namespace"}
        self.objects[CORE] = resources(kinds)
        self.objects[APPS] = resources({"deployments": "Deployment", "statefulsets": "StatefulSet"})
        self.left = -1  # requests that the process still sends; below 0: without end
        self.is_answered = True

    async def request(self, method: str, path: str, **asked: Any) -> Answer:
        if self.left == 0 and not self.is_answered:
            await super().request(method, path, **asked)
        if self.left == 0:
            raise KilledError
        self.left -= 1
        return await super().request(method, path, **asked)

    def _post(self, path: str, asked: Json, sent: Json) -> Answer:
        answer = super()._post(path, asked, sent)
        for template in sent.get("spec", {}).get("volumeClaimTemplates", ()):
            name = f"{template['metadata']['name']}-{sent['metadata']['name']}-0"
            self.put(f"{CLAIMS_OF_SETS}/{name}", metadata={**template["metadata"], "name": name})
        return answer

    def made(self) -> set[str]:
        """Return what scenarios may have made: all but Leases and what clusters have."""
        return {each for each in self.objects if each.startswith((f"{CORE}/n", APPS + "/"))}


def resources(kinds: dict[str, str]) -> Json:
    listed = [{"name": name, "kind": kind, "namespaced": True} for name, kind in kinds.items()]
    return {"metadata": {}, "resources": listed}


def manifest(kind: str, name: str, version: str = "v1", **more: Any) -> Named:
    namespace = more.pop("namespace", "default")
    metadata = {"name": name, "namespace": namespace}
    return Named({"apiVersion": version, "kind": kind, "metadata": metadata, **more}, name)


WANTED = (
    manifest("ConfigMap", "config"),
    manifest("Pod", "a"),
    manifest("Pod", "b"),
    manifest(
        "StatefulSet",
        "db",
        "apps/v1",
        namespace="other",
        spec={"volumeClaimTemplates": [{"metadata": {"name": "data"}}]},
    ),
    manifest("Pod", "a", data={"changed": "yes"}),
)


async def play(api: Cluster, run: str = RUN, prefix: str = "fleet") -> RunLease:
    """Hold the Lease and apply everything, as a run does; return the Lease."""
    lease = RunLease(api, prefix, run, sleep=no_sleep)
    await lease.acquire()
    applied = Applied(api, run, lease.note, sleep=no_sleep)
    for each in WANTED:
        await applied.apply(each)
    return lease


def killed_after(requests: int, *, is_answered: bool) -> Cluster | None:
    """Return what is left in the cluster of a fleet killed then, None if it came to its end."""
    api = Cluster()
    foreign(api)
    api.left, api.is_answered = requests, is_answered
    try:
        asyncio.run(play(api))
    except KilledError:
        api.left = -1
        return api
    return None


def foreign(api: Cluster) -> set[str]:
    """Create objects of others: one with the label, one copied, one of the same name elsewhere."""
    mark = {OWNER_ANNOTATION: object_mark(RUN, "default", "a")}
    label = {APPLIED_BY: RUN}
    api.put(f"{PODS}/labelled", metadata={"labels": label})
    api.put(f"{PODS}/copy-of-a", metadata={"labels": label, "annotations": mark})
    api.put(f"{PODS}/marked", metadata={"annotations": mark})
    api.put(f"{CORE}/namespaces/other/pods/a", metadata={"labels": label, "annotations": mark})
    api.put(f"{MAPS}/config-1", metadata={"labels": label})
    claims = {OWNER_ANNOTATION: f"{RUN}/other/data-db-*"}
    api.put(f"{CLAIMS_OF_SETS}/data-db-x", metadata={"labels": label, "annotations": claims})
    return api.made()


def cleaned(api: FakeApi, run: str = RUN) -> Cleaned:
    return asyncio.run(clean_run(api, run, sleep=no_sleep))


@pytest.mark.parametrize("is_answered", [True, False])
def test_whenever_a_scenario_is_killed_all_that_it_made_is_named_and_goes(
    *, is_answered: bool
) -> None:
    """After each request in turn: before the server has it, and when it has but nobody hears."""
    most = 0
    for requests in range(100):
        api = killed_after(requests, is_answered=is_answered)
        if api is None:
            break
        others = foreign(Cluster())
        ours = api.made() - others
        most = max(most, len(ours))
        named = {path for info in asyncio.run(list_runs(api)).runs for path in info.objects}
        assert named == ours, requests
        found = cleaned(api)
        assert api.made() == others, requests
        assert not found.left
        assert not [path for path in api.objects if path.startswith(f"{RUN_LEASES}/")]
    assert requests == 13
    assert most == 5


def test_the_lease_says_where_before_anything_is_created() -> None:
    api = Cluster()
    noted: list[list[str]] = []

    def look(method: str, path: str) -> None:
        if method == "POST" and path != RUN_LEASES:
            lease = api.objects[f"{RUN_LEASES}/fleet-run-fleet"]
            noted.append(read_noted(lease)[RUN])
            assert path in noted[-1]

    api.before_request = look
    asyncio.run(play(api))
    assert noted == [[MAPS], [MAPS, PODS], [MAPS, PODS], [MAPS, PODS, SETS, CLAIMS_OF_SETS]]


async def test_a_note_that_the_server_does_not_take_lets_nothing_be_created() -> None:
    api = Cluster()
    lease = RunLease(api, "fleet", RUN, sleep=no_sleep)
    await lease.acquire()
    api.objects[f"{RUN_LEASES}/fleet-run-fleet"]["spec"]["holderIdentity"] = "another"
    api.objects[f"{RUN_LEASES}/fleet-run-fleet"]["metadata"]["resourceVersion"] = "99"
    with pytest.raises(SetupError, match=r"cannot note .*configmaps in the Lease"):
        await Applied(api, RUN, lease.note).apply(WANTED[0])
    assert not api.made()


async def test_renewals_at_the_same_time_lose_no_note() -> None:
    api = Cluster()
    lease = RunLease(api, "fleet", RUN, sleep=no_sleep)
    await lease.acquire()
    await asyncio.gather(lease.renew(), lease.note(PODS), lease.renew(), lease.note(MAPS))
    assert read_noted(api.objects[f"{RUN_LEASES}/fleet-run-fleet"]) == {RUN: [PODS, MAPS]}


def expire(api: FakeApi) -> None:
    lease = api.objects[f"{RUN_LEASES}/fleet-run-fleet"]["metadata"]
    lease["managedFields"] = [{"time": "2026-11-23T01:02:03Z"}]


def test_who_takes_the_names_over_still_names_what_the_dead_run_made() -> None:
    """Its nodes are adopted; what it applied is of the old run, in the Lease of the new one."""
    api = Cluster()
    asyncio.run(play(api))
    expire(api)
    after = "20261124-010203-abcd"
    lease = RunLease(api, "fleet", after, sleep=no_sleep)
    assert asyncio.run(lease.acquire()) == RUN
    assert list(lease.noted) == [RUN]
    [old] = [info for info in asyncio.run(list_runs(api)).runs if info.run == RUN]
    assert len(old.objects) == 5
    asyncio.run(lease.release())
    assert f"{RUN_LEASES}/fleet-run-fleet" in api.objects  # it is needed
    cleaned(api, after)
    assert not api.made()
    assert f"{RUN_LEASES}/fleet-run-fleet" not in api.objects


def command(api: FakeApi, choice: Choice) -> tuple[Exit, str, list[str]]:
    said: list[str] = []
    noted: list[str] = []
    code = asyncio.run(clean(api, choice, say=said.append, note=noted.append))
    return code, "".join(said), noted


def test_what_is_left_is_said_with_what_holds_it_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fleet.cluster.leftovers.LOOK_EVERY_S", 0)
    api = Cluster()
    asyncio.run(play(api))
    api.objects[f"{MAPS}/config"]["metadata"]["finalizers"] = ["example.com/hold"]
    code, _, noted = command(api, Choice(run=RUN))
    assert code is Exit.EXPECTATION_FAILED
    assert noted == [f"still there: {MAPS}/config (its finalizers: example.com/hold)"]
    assert api.made() == {f"{MAPS}/config"}
    api.objects[f"{MAPS}/config"]["metadata"].pop("finalizers")
    code, said, noted = command(api, Choice(run=RUN))
    assert (code, noted) == (Exit.OK, [])
    assert "1 objects of scenarios" in said
    assert not api.made()


@pytest.mark.parametrize(("method", "how"), [("GET", "cannot list"), ("DELETE", "still there:")])
def test_what_the_server_refuses_is_left_and_said(method: str, how: str) -> None:
    api = Cluster()
    asyncio.run(play(api))

    def refuse(asked: str, path: str) -> None:
        if asked == method and path.startswith(SETS):
            api.fail_next = [Answer(403, {"message": "forbidden"})]

    api.before_request = refuse
    code, _, noted = command(api, Choice(run=RUN))
    assert code is Exit.EXPECTATION_FAILED
    [told] = noted
    assert told.startswith(f"{how} {SETS}")
    assert told.endswith("(forbidden)")
    assert api.made() == {f"{SETS}/db"}


def test_a_dry_run_names_what_would_go_and_copies_are_named_and_stay() -> None:
    api = Cluster()
    others = foreign(api)
    asyncio.run(play(api))
    _, said, _ = command(api, Choice(run=RUN, is_dry=True))
    for path in api.made() - others:
        assert path in said
    assert "copy-of-a" not in said
    code, _, noted = command(api, Choice(run=RUN))
    assert code is Exit.INVALID
    [told] = noted
    assert "not touched" in told
    for path in (f"{PODS}/copy-of-a", f"{PODS}/labelled", f"{MAPS}/config-1"):
        assert path in told
    assert api.made() == others


def test_what_takes_the_place_of_an_object_while_it_is_deleted_stays() -> None:
    api = Cluster()
    asyncio.run(play(api))

    def replace(method: str, path: str) -> None:
        if (method, path) == ("DELETE", f"{PODS}/a"):
            api.put(path, metadata={"uid": "another"})

    api.before_request = replace
    assert not cleaned(api).left
    assert api.made() == {f"{PODS}/a"}


def test_children_with_the_marks_of_their_parent_are_left_to_the_garbage_collector() -> None:
    api = Cluster()
    asyncio.run(play(api))
    parent = api.objects[f"{SETS}/db"]["metadata"]
    owner = {"kind": "StatefulSet", "name": "db", "uid": parent["uid"]}
    path = f"{SETS}/db-child"
    marks = {key: parent[key] for key in ("labels", "annotations")}
    api.put(path, metadata={**marks, "ownerReferences": [owner]})
    code, _, noted = command(api, Choice(run=RUN))
    assert (code, noted, api.made()) == (Exit.OK, [], {path})


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        '{"r": "x"}',
        '{"r": ["/api/v1/pods?x", "nodes", 7]}',
        '{"": ["/api/v1/pods"]}',
    ],
)
def test_a_note_that_is_not_fleets_says_nothing(text: str) -> None:
    lease = {"metadata": {"annotations": {APPLIED_ANNOTATION: text}}}
    assert not any(read_noted(lease).values())


def test_a_kind_whose_definition_is_gone_has_left_nothing() -> None:
    api = Cluster()
    asyncio.run(play(api))
    lease = api.objects[f"{RUN_LEASES}/fleet-run-fleet"]["metadata"]["annotations"]
    noted = orjson.loads(lease[APPLIED_ANNOTATION])
    noted[RUN].append("/apis/gone.io/v1/namespaces/default/things")
    lease[APPLIED_ANNOTATION] = orjson.dumps(noted).decode()
    assert not cleaned(api).left
    assert not api.made()


# ---- volumes ----


def volume(api: FakeApi, claim: str, *, name: str = "", run: str = RUN, **metadata: Any) -> str:
    """Create a volume as the CSI controller of a run makes it for a claim."""
    path = f"{VOLUMES}/{name or f'pvc-{claim}'}"
    marks = {
        "labels": {STORAGE_OF: run},
        "annotations": {
            PROVISIONED_BY: "csi.x",
            OWNER_ANNOTATION: object_mark(run, "", f"pvc-{claim}"),
        },
        "finalizers": [PROVISIONER_FINALIZER, "external-attacher/csi-x"],
    }
    ref = {"namespace": "default", "name": "c", "uid": claim}
    api.put(
        path, metadata={**marks, **metadata}, spec={"csi": {"driver": "csi.x"}, "claimRef": ref}
    )
    return path


def attachment(api: FakeApi, node: str, name: str = "at", mark: str = "at") -> str:
    path = f"{ATTACHMENTS}/{name}"
    marks = {
        "labels": {STORAGE_OF: RUN},
        "annotations": {OWNER_ANNOTATION: object_mark(RUN, "", mark)},
        "finalizers": ["external-attacher/csi-x", "example.com/other"],
    }
    api.put(path, metadata=marks, spec={"attacher": "csi.x", "nodeName": node})
    return path


def test_volumes_whose_claims_are_gone_go_with_fleets_finalizers_on_them() -> None:
    """Nobody else takes these off: without that they stay for ever."""
    api = FakeApi()
    path = volume(api, "u1")
    [info] = asyncio.run(list_runs(api)).runs
    assert (info.run, info.objects) == (RUN, (path,))
    assert not cleaned(api).left
    assert path not in api.objects


def test_a_volume_with_a_claim_stays_and_is_named_and_waits_for_nobody() -> None:
    api = FakeApi()
    path = volume(api, "u1")
    api.put(f"{CLAIMS}/c", metadata={"uid": "u1", "namespace": "default"})
    code, _, noted = command(api, Choice(run=RUN))
    assert code is Exit.EXPECTATION_FAILED
    assert noted == [f"still there: {path} (a volume of fleet, of the claim default/c)"]
    assert "finalizers" not in api.objects[path]["metadata"]
    del api.objects[f"{CLAIMS}/c"]
    assert command(api, Choice(run=RUN))[0] is Exit.OK
    assert path not in api.objects


def test_a_claim_that_is_going_is_waited_for() -> None:
    api = FakeApi()
    path = volume(api, "u1")
    going = {
        "uid": "u1",
        "deletionTimestamp": "now",
        "finalizers": ["kubernetes.io/pvc-protection"],
    }
    api.put(f"{CLAIMS}/c", metadata=going)
    looks = 0

    async def sleep(_seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            del api.objects[f"{CLAIMS}/c"]

    assert not asyncio.run(clean_run(api, RUN, sleep=sleep)).left
    assert path not in api.objects
    assert looks == 3


def test_attachments_to_nodes_that_are_gone_go_and_others_are_let_go() -> None:
    api = FakeApi()
    path = attachment(api, "n")
    code, _, noted = command_at_once(api)
    assert code is Exit.EXPECTATION_FAILED  # another finalizer is on it, which is not fleet's
    assert noted == [f"still there: {path} (its finalizers: example.com/other)"]
    api = FakeApi()
    api.put(f"{NODES}/n")
    path = attachment(api, "n")
    assert command_at_once(api)[0] is Exit.OK
    assert api.objects[path]["metadata"]["finalizers"] == ["example.com/other"]
    assert not api.objects[path]["metadata"]["labels"]


def command_at_once(api: FakeApi) -> tuple[Exit, str, list[str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fleet.cluster.leftovers.LOOK_EVERY_S", 0)
        return command(api, Choice(run=RUN))


def test_volumes_of_others_keep_what_they_have() -> None:
    """A volume of the same driver, copies of ours under other names, and those of another run."""
    api = FakeApi()
    volume(api, "u0")  # so that there is such a run
    theirs = [
        volume(api, "u1", labels={}),
        volume(api, "u1", name="copied"),
        volume(api, "u2", run="20261124-010203-abcd"),
        volume(api, "u3", annotations={PROVISIONED_BY: "csi.x"}),
        attachment(api, "gone", name="copied", mark="at"),
    ]
    before = {path: api.objects[path]["metadata"]["finalizers"] for path in theirs}
    assert command(api, Choice(run=RUN))[0] is Exit.OK
    assert {path: api.objects[path]["metadata"].get("finalizers") for path in theirs} == before
    assert f"{VOLUMES}/pvc-u0" not in api.objects


def test_a_volume_that_somebody_else_made_loses_only_fleets_finalizer() -> None:
    api = FakeApi()
    path = volume(api, "u1", name="static", annotations={OWNER_ANNOTATION: f"{RUN}//static"})
    assert command(api, Choice(run=RUN))[0] is Exit.OK
    assert api.objects[path]["metadata"]["finalizers"] == [PROVISIONER_FINALIZER]
    assert not asyncio.run(list_runs(api)).runs
