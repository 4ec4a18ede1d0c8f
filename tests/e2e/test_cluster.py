"""Preflight, identities, adoption and clean-up against a real control plane.

These check what the fake API server of the unit tests takes for granted.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from e2e.e2e_world import WAIT_MAX_S
from e2e.own_control_plane import restart_apiserver
from fleet.cluster.api_client import Api, Cluster
from fleet.cluster.cleanup import CSI_NODES, NODE_LEASES, PATIENCE_S, Cleaned, clean_run
from fleet.cluster.credentials import ClusterSelection
from fleet.cluster.daemonsets import FAKE_TAINT, NodeShape
from fleet.cluster.identity import (
    Features,
    Identity,
    Impersonation,
    check_permissions,
    impersonation_headers,
    node_permissions,
    own_permissions,
    probe,
    who_am_i,
)
from fleet.cluster.kept_records import CONFIG_MAPS, keep_record, packed, read_records
from fleet.cluster.ownership import (
    NODES,
    OWNER_ANNOTATION,
    PREFIX_LABEL,
    RUN_LABEL,
    adopt,
    find_nodes,
    owner_mark,
)
from fleet.cluster.preflight import confirm, inspect
from fleet.cluster.runs import RUN_LEASES, RunLease, list_runs
from fleet.controlplane.controlplane import ControlPlane
from fleet.controlplane.options import ControlPlaneInfo, ControlPlaneOptions
from fleet.errors import Exit, SetupError, UsageError
from fleet.profile.settings import IdentityMode
from fleet.run.clean_command import Choice, clean

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, Any]], Any]
Rule = dict[str, Any]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
LABELS = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture(scope="module")
def target(run: Run) -> Iterator[ControlPlaneInfo]:
    plane = ControlPlane(ControlPlaneOptions())
    yield run(plane.start())
    run(plane.stop())


@asynccontextmanager
async def connected(kubeconfig: Path) -> Any:
    async with await Cluster.connect(ClusterSelection(kubeconfig=kubeconfig)) as cluster:
        yield cluster


async def create(api: Api, path: str, **body: Any) -> dict[str, Any]:
    answer = await api.request("POST", path, body=body)
    assert answer.ok, answer
    return answer.body


async def create_node(api: Api, name: str, run_id: str = "", prefix: str = "") -> None:
    """Create a Node with Lease and CSINode, as a kubelet does."""
    labels: dict[str, str] = dict(LABELS)
    annotations: dict[str, str] = {}
    taints = []
    if run_id:
        labels |= {RUN_LABEL: run_id, PREFIX_LABEL: prefix}
        taints = [{"key": FAKE_TAINT.key, "value": "true", "effect": "NoSchedule"}]
        annotations = {OWNER_ANNOTATION: owner_mark(run_id, "uid")}
    metadata = {"name": name, "labels": labels, "annotations": annotations}
    node = await create(api, NODES, metadata=metadata, spec={"taints": taints})
    uid = node["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
    owned = {"name": name, "ownerReferences": [owner]}
    await create(api, NODE_LEASES, metadata=owned, spec={"holderIdentity": name})
    await create(api, CSI_NODES, metadata=owned, spec={"drivers": []})


async def eventually(ask: Callable[[], Awaitable[T]], wanted: T) -> None:
    deadline = time.monotonic() + WAIT_MAX_S
    while (found := await ask()) != wanted:
        assert time.monotonic() < deadline, f"{found} after {WAIT_MAX_S} s, not {wanted}"
        await asyncio.sleep(0.1)


async def kubeconfig_with_rules(
    api: Api, target: ControlPlaneInfo, path: Path, *rules: Rule
) -> Path:
    """Make a user that may do what the rules say and nothing else."""
    name = path.name
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    await create(api, accounts, metadata={"name": name})
    await create(api, f"{RBAC}/clusterroles", metadata={"name": name}, rules=list(rules))
    await create(
        api,
        f"{RBAC}/clusterrolebindings",
        metadata={"name": name},
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": "default"}],
    )
    token = await create(api, f"{accounts}/{name}/token", spec={"expirationSeconds": 3600})
    user = f"system:serviceaccount:default:{name}"
    for asked in rules[-1:]:  # the authorizer learns of all rules at once, some time later
        await eventually(partial(is_allowed, api, user, asked), wanted=True)
    return with_token(target, path, token["status"]["token"])


async def is_allowed(api: Api, user: str, asked: Rule) -> bool:
    """Ask the authorizer whether it knows a rule of a user."""
    resource, _, subresource = asked["resources"][0].partition("/")
    attributes = {
        "group": asked["apiGroups"][0],
        "resource": resource,
        "subresource": subresource,
        "verb": asked["verbs"][0],
    }
    spec = {"user": user, "resourceAttributes": attributes}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    review = await create(api, path, spec=spec)
    return bool(review["status"]["allowed"])


def with_token(target: ControlPlaneInfo, path: Path, token: str) -> Path:
    document = yaml.safe_load(target.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(document))
    return path


def rule(groups: str, resources: str, *verbs: str) -> Rule:
    return {"apiGroups": [groups], "resources": resources.split(), "verbs": list(verbs)}


def test_certificates_and_tokens_reach_the_server(run: Run, target: ControlPlaneInfo) -> None:
    async def scenario(kubeconfig: Path, *, has_token: bool) -> None:
        async with connected(kubeconfig) as cluster:
            assert cluster.version == target.server_version
            assert (cluster.credentials.authorization() is not None) is has_token
            await check_permissions(cluster.api("preflight"), own_permissions(Features()))
            assert set(cluster.requests) == {"preflight"}

    run(scenario(target.kubeconfig, has_token=False))
    run(scenario(target.token_kubeconfig, has_token=True))


def test_a_refused_token_is_a_setup_error(
    run: Run, target: ControlPlaneInfo, tmp_path: Path
) -> None:
    path = with_token(target, tmp_path / "k", "nonsense")
    with pytest.raises(SetupError, match="401, the credentials of context fleet are refused"):
        run(Cluster.connect(ClusterSelection(kubeconfig=path)))


def test_the_wrong_ca_is_a_setup_error(run: Run, target: ControlPlaneInfo, tmp_path: Path) -> None:
    document = yaml.safe_load(target.kubeconfig.read_text())
    del document["clusters"][0]["cluster"]["certificate-authority-data"]
    path = tmp_path / "k"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(SetupError, match="certificate verify failed"):
        run(Cluster.connect(ClusterSelection(kubeconfig=path)))


def test_the_user_name_alone_makes_a_node_with_constrained_rights(
    run: Run, target: ControlPlaneInfo, tmp_path: Path
) -> None:
    """A user with the new grant alone can be a node, verb by verb, and the checks see each."""
    prefix = "impersonate-on:arbitrary-node:"
    needed = node_permissions(Identity(IdentityMode.IMPERSONATE, Impersonation.USER), Features())
    rules = [
        rule("authentication.k8s.io", "nodes", "impersonate:arbitrary-node"),
        rule("authentication.k8s.io", "selfsubjectreviews", f"{prefix}create"),
        *(
            rule(p.group, f"{p.resource}/{p.subresource}".rstrip("/"), p.verb)
            for p in needed
            if p.resource != "secrets"
        ),
    ]

    async def scenario() -> None:
        async with connected(target.kubeconfig) as admin:
            path = tmp_path / "constrained"
            await kubeconfig_with_rules(admin.api("t"), target, path, *rules)
            async with connected(path) as cluster:
                api = cluster.api("preflight")
                identity = await probe(api, IdentityMode.IMPERSONATE, "one")
                assert identity.impersonation is Impersonation.USER
                with pytest.raises(SetupError, match=r"2 missing: .*secrets$"):
                    await check_permissions(api, node_permissions(identity, Features()))
                user = identity.user_of("one").decode()
                headers = [("Impersonate-User", user)]
                body = {"metadata": {"name": "one"}}
                made = await api.request("POST", NODES, body=body, headers=headers)
                assert made.ok, made
                # NodeRestriction: a node is itself and nobody else.
                body = {"metadata": {"name": "two"}}
                other = await api.request("POST", NODES, body=body, headers=headers)
                assert other.code == 403
            await admin.api("t").request("DELETE", f"{NODES}/one")

    run(scenario())


def test_the_old_grant_needs_the_group(run: Run, target: ControlPlaneInfo, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with connected(target.kubeconfig) as admin:
            path = tmp_path / "legacy"
            grant = rule("", "users groups", "impersonate")
            await kubeconfig_with_rules(admin.api("t"), target, path, grant)
            async with connected(path) as cluster:
                found = await probe(cluster.api("p"), IdentityMode.IMPERSONATE, "one")
                assert found.impersonation is Impersonation.USER_AND_GROUP

    run(scenario())


def test_with_both_grants_a_request_with_the_group_spoils_those_without(
    run: Run, target: ControlPlaneInfo, tmp_path: Path
) -> None:
    """Why the probe never asks for the group first, and why it can be asked again."""
    prefix = "impersonate-on:arbitrary-node:"
    rules = [
        rule("", "users groups", "impersonate"),
        rule("authentication.k8s.io", "nodes", "impersonate:arbitrary-node"),
        rule("authentication.k8s.io", "selfsubjectreviews", f"{prefix}create"),
    ]

    async def scenario() -> None:
        async with connected(target.kubeconfig) as admin:
            path = tmp_path / "both"
            await kubeconfig_with_rules(admin.api("t"), target, path, *rules)
            async with connected(path) as cluster:
                api = cluster.api("p")
                before = await probe(api, IdentityMode.IMPERSONATE, "one")
                await who_am_i(api, impersonation_headers("system:node:one", "system:nodes"))
                after = await probe(api, IdentityMode.IMPERSONATE, "one")
        assert before.impersonation is Impersonation.USER
        assert after.impersonation is Impersonation.USER_AND_GROUP

    run(scenario())


def test_a_user_without_rights_is_told_before_anything_is_created(
    run: Run, target: ControlPlaneInfo, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with connected(target.kubeconfig) as admin:
            path = tmp_path / "nobody"
            await kubeconfig_with_rules(admin.api("t"), target, path)
            async with connected(path) as cluster:
                api = cluster.api("preflight")
                with pytest.raises(SetupError, match="no permission to impersonate nodes"):
                    await probe(api, IdentityMode.IMPERSONATE, "one")
                with pytest.raises(SetupError, match=r"delete csinodes\.storage\.k8s\.io"):
                    await check_permissions(api, own_permissions(Features()))

    run(scenario())


def test_the_rights_that_are_checked_are_the_rights_that_suffice(
    run: Run, target: ControlPlaneInfo, tmp_path: Path
) -> None:
    """A user with exactly `own_permissions` can look, claim, adopt and clean up."""
    rules = [rule(p.group, p.resource, p.verb) for p in own_permissions(Features())]

    async def scenario() -> None:
        async with connected(target.kubeconfig) as admin:
            await create_node(admin.api("t"), "own-0", "r1", "own")
            path = tmp_path / "own"
            await kubeconfig_with_rules(admin.api("t"), target, path, *rules)
            async with connected(path) as cluster:
                await adopt_and_clean(cluster)

    async def adopt_and_clean(cluster: Cluster) -> None:
        facts = await inspect(
            cluster.api("preflight"),
            server=cluster.credentials.server,
            context=cluster.credentials.context,
            server_version=cluster.version,
            prefix="own",
            lease_prefix="own",
            run_id="r2",
            shapes=[NodeShape(count=10)],
            is_named=False,
        )
        assert not facts.is_shared
        lease = RunLease(cluster.api("lease"), "own", "r2")
        assert await lease.acquire() == ""
        assert len(await adopt(cluster.api("adopt"), facts.existing, "r2", lease.uid)) == 1
        cleaned = await clean_run(cluster.api("cleanup"), "r2")
        assert cleaned == Cleaned(1, 1, 1, 1, 0)

    run(scenario())


def test_a_prefix_belongs_to_one_living_fleet(run: Run, target: ControlPlaneInfo) -> None:
    async def scenario() -> None:
        async with connected(target.kubeconfig) as cluster:
            api = cluster.api("lease")
            lease = RunLease(api, "one", "r1")
            assert await lease.acquire() == ""
            with pytest.raises(SetupError, match="in use by run r1"):
                await RunLease(api, "one", "r2").acquire()
            # The server moves its own time stamp on each renewal; life is judged by it.
            first = lease._lease["metadata"]["managedFields"][0]["time"]
            await asyncio.sleep(1.1)
            assert await lease.renew()
            assert lease._lease["metadata"]["managedFields"][0]["time"] > first
            [info] = [info for info in (await list_runs(api)).runs if info.run == "r1"]
            assert info.is_alive
            await lease.release()
            again = RunLease(api, "one", "r2")
            assert await again.acquire() == ""
            assert not await lease_after_takeover(api)
            await again.release()

    async def lease_after_takeover(api: Api) -> bool:
        old = RunLease(api, "one", "r1")
        old._lease = (await api.request("GET", f"{RUN_LEASES}/fleet-run-one")).body
        stale = {**old._lease["metadata"], "resourceVersion": "1"}
        old._lease = {**old._lease, "metadata": stale}
        renewed = await old.renew()
        assert old.lost_to == "r2"
        return renewed

    run(scenario())


def test_a_record_replaces_itself_and_nothing_else(run: Run, target: ControlPlaneInfo) -> None:
    async def scenario() -> None:
        async with connected(target.kubeconfig) as cluster:
            api = cluster.api("record")
            name, path = "fleet-record-kept", f"{CONFIG_MAPS}/fleet-record-kept"
            uid = await keep_record(api, "kept", name, {"a": packed(b"1")})
            assert await keep_record(api, "kept", name, {"a": packed(b"2")}, uid) == uid
            assert await keep_record(api, "kept", name, {"a": packed(b"3")}) == uid
            assert await read_records(api, "kept") == {name: {"a": b"3"}}
            assert (await api.request("DELETE", path)).ok
            again = await keep_record(api, "kept", name, {"a": packed(b"4")}, uid)
            assert again != uid
            assert (await api.request("DELETE", path)).ok
            foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
            made = await api.request("POST", CONFIG_MAPS, body=foreign)
            for known in ("", again):
                with pytest.raises(SetupError, match="is not one of run kept: it stays"):
                    await keep_record(api, "kept", name, {"a": packed(b"5")}, known)
            assert (await api.request("GET", path)).body == made.body

    run(scenario())


def test_clean_up_removes_a_run_and_spares_the_rest(run: Run, target: ControlPlaneInfo) -> None:
    selector = f"{PREFIX_LABEL}=gone"

    async def scenario() -> None:
        async with connected(target.kubeconfig) as cluster:
            api = cluster.api("cleanup")
            await create_node(api, "real-0")
            for index in range(20):
                await create_node(api, f"gone-{index}", "gone", "gone")
            for name, node in (("on-gone", "gone-3"), ("on-real", "real-0")):
                await create_pod(api, name, node)
            nodes = (await find_nodes(api, selector)).owned
            assert len(await adopt(api, nodes, "taken", "uid")) == 20
            with pytest.raises(UsageError, match="no such run"):
                await clean(api, Choice(run="gone"))
            said: list[str] = []
            assert await clean(api, Choice()) is Exit.OK
            assert await clean(api, Choice(expired=True, yes=True), say=said.append) is Exit.OK
            assert said == ["removed 1 runs: 20 nodes, 20 leases, 20 CSINodes, 1 pods"]
            assert not (await find_nodes(api, selector)).owned
            for path in (f"{NODES}/real-0", f"{NODE_LEASES}/real-0", f"{CSI_NODES}/real-0"):
                assert (await api.request("GET", path)).ok
            pods = "/api/v1/namespaces/default/pods"
            assert (await api.request("GET", f"{pods}/on-real")).ok
            assert (await api.request("GET", f"{pods}/on-gone")).code == 404
            await api.request("DELETE", f"{pods}/on-real", body={"gracePeriodSeconds": 0})
            await api.request("DELETE", f"{NODES}/real-0")

    run(scenario())


@pytest.mark.slow
def test_a_clean_up_outlasts_a_restart_of_the_server(run: Run) -> None:
    """It is killed and away for seconds: connections break, are refused, then roles are unread."""
    plane = ControlPlane(ControlPlaneOptions())
    info = run(plane.start())

    async def scenario() -> None:
        async with connected(info.kubeconfig) as cluster:
            for index in range(80):
                await create_node(cluster.api("t"), f"cut-{index}", "cut", "cut")
            away: list[asyncio.Task[None]] = []

            def progress(what: str, done: int, _total: int) -> None:
                if (what, done) == ("nodes", 5):
                    away.append(asyncio.create_task(restart_apiserver(plane, down_s=5.0)))

            api = cluster.api("cleanup", patience_s=PATIENCE_S)
            assert not (await clean_run(api, "cut", progress)).refused
            await away[0]
            for path in (NODES, NODE_LEASES, CSI_NODES):
                names = [each["metadata"]["name"] for each in (await api.get(path, path))["items"]]
                assert not [name for name in names if name.startswith("cut-")]

    try:
        run(scenario())
    finally:
        run(plane.stop())


def test_a_machine_with_fleet_s_label_loses_nothing(run: Run, target: ControlPlaneInfo) -> None:
    """One with the label alone, and one with an empty label."""

    async def scenario() -> None:
        async with connected(target.kubeconfig) as cluster:
            api = cluster.api("cleanup")
            await create_node(api, "mine-0", "mixed", "mixed")
            for name, value in (("labelled-0", "mixed"), ("labelled-1", "")):
                await create_node(api, name)
                patch = {"metadata": {"labels": {RUN_LABEL: value}}}
                path = f"{NODES}/{name}"
                answer = await api.request("PATCH", path, body=patch)
                assert answer.ok, answer
            await create_pod(api, "on-labelled", "labelled-0")
            noted: list[str] = []
            everything = Choice(all_runs=True, yes=True)
            assert await clean(api, everything, note=noted.append) is Exit.INVALID
            [line] = [line for line in noted if "not touched" in line]
            assert "labelled-0, labelled-1" in line
            listed = await api.request("GET", NODES)
            names = [node["metadata"]["name"] for node in listed.body["items"]]
            assert names == ["labelled-0", "labelled-1"]
            for name in names:
                for path in (NODE_LEASES, CSI_NODES):
                    assert (await api.request("GET", f"{path}/{name}")).ok
                await api.request("DELETE", f"{NODES}/{name}")
            pod = "/api/v1/namespaces/default/pods/on-labelled"
            assert (await api.request("DELETE", pod, body={"gracePeriodSeconds": 0})).ok

    run(scenario())


async def create_pod(api: Api, name: str, node: str) -> None:
    container = {"name": "c", "image": "none"}
    spec = {
        "nodeName": node,
        "containers": [container],
        "tolerations": [{"operator": "Exists"}],
        "automountServiceAccountToken": False,
    }
    await create(api, "/api/v1/namespaces/default/pods", metadata={"name": name}, spec=spec)


DAEMON_SETS: dict[str, dict[str, Any]] = {
    "wildcard": {"tolerations": [{"operator": "Exists"}]},
    "plain": {},
    "by-name": {"tolerations": [{"key": FAKE_TAINT.key, "operator": "Exists"}]},
    "windows": {
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"kubernetes.io/os": "windows"},
    },
    "not-edge": {
        "tolerations": [{"operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "edge", "operator": "DoesNotExist"}]}
                    ]
                }
            }
        },
    },
}


def test_daemon_sets_land_where_preflight_says(run: Run, target: ControlPlaneInfo) -> None:
    """The DaemonSet controller itself is the judge: its desired count is our prediction."""
    path = "/apis/apps/v1/namespaces/default/daemonsets"

    async def desired(api: Api) -> dict[str, int]:
        listed = (await api.request("GET", path)).body["items"]
        seen = [item for item in listed if item["status"].get("observedGeneration")]
        return {d["metadata"]["name"]: d["status"]["desiredNumberScheduled"] for d in seen}

    async def scenario() -> None:
        async with connected(target.kubeconfig) as cluster:
            api = cluster.api("preflight")
            for index in range(3):
                await create_node(api, f"ds-{index}", "ds", "ds")
            await create_node(api, "real-1")
            for name, template in DAEMON_SETS.items():
                labels = {"app": name}
                template_spec = {"containers": [{"name": "c", "image": "none"}], **template}
                pod = {"metadata": {"labels": labels}, "spec": template_spec}
                spec = {"selector": {"matchLabels": labels}, "template": pod}
                await create(api, path, metadata={"name": name}, spec=spec)
            facts = await inspect(
                api,
                server=target.url,
                context="fleet",
                server_version="",
                prefix="ds",
                lease_prefix="ds",
                run_id="r",
                shapes=[NodeShape(count=3, labels=LABELS)],
                is_named=False,
            )
            assert facts.is_shared
            with pytest.raises(UsageError, match="--confirm-cluster fleet"):
                await confirm(facts, confirmed=None, ask=None, notice="")
            predicted = {landing.name: landing.pods for landing in facts.landings}
            assert predicted == {"wildcard": 3, "by-name": 3, "not-edge": 3}
            await api.request("DELETE", f"{NODES}/real-1")
            wanted = {name: predicted.get(name, 0) for name in DAEMON_SETS}

            async def recounted() -> dict[str, int]:
                # The controller does not count anew for a node that went; a change makes it.
                touch = {"metadata": {"annotations": {"touched": str(next(touches))}}}
                for name in DAEMON_SETS:
                    await api.request("PATCH", f"{path}/{name}", body=touch)
                return await desired(api)

            touches = itertools.count()
            await eventually(recounted, wanted)
            for name in DAEMON_SETS:
                await api.request("DELETE", f"{path}/{name}")
            cleaned = await clean_run(api, "ds")
            assert (cleaned.nodes, cleaned.leases, cleaned.csi_nodes) == (3, 3, 3)

    run(scenario())
