"""What `fleet rbac` prints is enough, and no rule of it is too much; nobody here is an admin."""

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.e2e_world import CONFIRMED, DEDICATED, WAIT_MAX_S, Json, World, eventually, workload
from fleet.cluster.api_client import Cluster
from fleet.cluster.credentials import ClusterSelection
from fleet.cluster.identity import Features, Impersonation, authorize, impersonation_headers, probe
from fleet.controlplane.controlplane import ControlPlane
from fleet.controlplane.options import ControlPlaneOptions
from fleet.errors import SetupError
from fleet.profile.settings import Fidelity, IdentityMode

pytest_plugins = ["e2e.e2e_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

ACCOUNT = "system:serviceaccount:default:"
TOKEN_ID, TOKEN_SECRET = "e2e123", "0123456789abcdef"
RACES = {"configmaps", "pods", "serviceaccounts"}
"""The Node authorizer learns of a binding by a watch that may lag behind the node's own."""

UNSEEN_MAX = 5
"""Exempt requests that the audit log does not have yet, a look at the metrics among them."""


def account(world: World, directory: Path, name: str, *options: str) -> Path:
    """Return the kubeconfig of a ServiceAccount with the rights that fleet prints."""
    printed = world.fleet("rbac", f"--name={name}", f"--service-account=default/{name}", *options)
    assert printed.returncode == 0, printed.stderr
    world.kubectl("create", "serviceaccount", name)
    world.kubectl("apply", "-f", "-", stdin=printed.stdout)
    token = world.kubectl("create", "token", name).strip()
    return world.user(directory / name, token)


@pytest.fixture
def bootstrap_token(world: World) -> Iterator[str]:
    """Make a token as an administrator would, for one test."""
    name = f"bootstrap-token-{TOKEN_ID}"
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": TOKEN_ID,
            "token-secret": TOKEN_SECRET,
            "usage-bootstrap-authentication": "true",
        },
    }
    world.apply(secret)
    yield f"{TOKEN_ID}.{TOKEN_SECRET}"
    world.kubectl("delete", "secret", name, "--namespace=kube-system")


def acting(event: Json) -> Json:
    """Return as whom a request was made."""
    user: Json = event["impersonatedUser"] if "impersonatedUser" in event else event["user"]
    return user


def play(world: World, kubeconfig: Path, name: str, *options: str) -> list[Json]:
    """Have two nodes, a pod on each, and clean up; return the requests of that time."""
    before = len(world.audit())
    volume = {"name": "v", "configMap": {"name": "kube-root-ca.crt"}}
    with world.spawn(name, 2, f"--kubeconfig={kubeconfig}", *DEDICATED, *options) as run:
        run.until_ready()
        world.apply(workload("Deployment", name, 2, volumes=[volume]))
        eventually(lambda: len(world.ready_pods(name)) == 2, "the pods are Ready")
        world.kubectl("delete", "deployment", name)
        eventually(lambda: not world.pods(name), "the pods are gone")
        run.end_well_or_late()
    world.assert_nothing_left(name)
    return world.audit()[before:]


@pytest.mark.parametrize(
    ("identity", "fidelity"),
    [
        ("impersonate", "kubelet"),
        ("csr", "kubelet"),
        ("shared", "kubelet"),
        pytest.param("impersonate", "light", marks=pytest.mark.slow),
        pytest.param("shared", "light", marks=pytest.mark.slow),
    ],
)
def test_a_service_account_with_the_printed_rights_runs_a_fleet(
    world: World, tmp_path: Path, bootstrap_token: str, identity: str, fidelity: str
) -> None:
    name = f"{identity}-{fidelity}"
    chosen: tuple[str, ...] = (f"--identity={identity}", f"--fidelity={fidelity}")
    kubeconfig = account(world, tmp_path, name, *chosen, "--nodes=2", f"--name-prefix={name}")
    schemas = world.dispatched("flow_schema")
    if identity == "csr":
        chosen += (f"--bootstrap-token={bootstrap_token}", f"--cert-dir={tmp_path / 'certs'}")
    before = len(world.audit())
    audit = play(world, kubeconfig, name, *chosen)
    later = world.dispatched("flow_schema")
    gained = {schema: later[schema] - schemas.get(schema, 0) for schema in later}

    user, prefix = ACCOUNT + name, f"system:node:{name}-"
    own = [e for e in audit if e["user"]["username"] == user and "impersonatedUser" not in e]
    nodes = [e for e in audit if acting(e)["username"].startswith(prefix)]
    assert own
    assert not [e for e in own if e["responseStatus"]["code"] == 403]
    refused = [e for e in nodes if e["responseStatus"]["code"] == 403]
    forbidden = {e["objectRef"]["resource"] for e in refused}
    assert forbidden <= RACES
    # Which queues they waited in, as the API server counts them.
    if identity == "shared":
        assert not nodes
        assert gained["service-accounts"] >= len({e["auditID"] for e in own})
        return
    assert {acting(e)["groups"][0] for e in nodes} == {"system:nodes"}
    high, rest = gained["system-node-high"], gained["system-nodes"]
    assert high > 0
    assert high + rest >= len({e["auditID"] for e in nodes}) > UNSEEN_MAX

    def masters() -> set[str]:
        since = world.audit()[before:]
        return {e["auditID"] for e in since if "system:masters" in e["user"].get("groups", ())}

    eventually(lambda: gained["exempt"] <= len(masters()) + UNSEEN_MAX, "whose were exempt")


@pytest.mark.parametrize(
    "identity",
    ["impersonate", *(pytest.param(each, marks=pytest.mark.slow) for each in ("csr", "shared"))],
)
def test_rights_by_name_reach_no_other_node(
    world: World, tmp_path: Path, foreign_node: str, identity: str
) -> None:
    """Neither to be a node that fleet did not create, nor to write or delete what it has."""
    name = f"narrow-{identity}"
    chosen = (f"--identity={identity}", "--nodes=2", f"--name-prefix={name}")
    kubeconfig = account(world, tmp_path, name, *chosen)
    mode = IdentityMode(identity)

    async def play_foul() -> None:
        async with await Cluster.connect(ClusterSelection(kubeconfig=kubeconfig)) as cluster:
            api = cluster.api("preflight")
            ends = (f"{name}-00000", f"{name}-00001")

            async def is_granted() -> bool:
                try:
                    await authorize(api, mode, ends, Features())
                except SetupError:
                    return False
                return True

            deadline = time.monotonic() + WAIT_MAX_S
            while not await is_granted():  # the authorizer sees roles a moment later
                assert time.monotonic() < deadline
            lease = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{foreign_node}"
            csi_node = f"/apis/storage.k8s.io/v1/csinodes/{foreign_node}"
            node = f"/api/v1/nodes/{foreign_node}"
            leader = "/apis/coordination.k8s.io/v1/namespaces/default/leases/somebodys-leader"
            for path in (node, lease, csi_node, leader):
                assert (await api.request("DELETE", path)).code == 403, path
            status = f"{node}/status"
            for path in (node, status):
                answer = await api.request("PATCH", path, body={})
                assert answer.code == 403, path
            for groups in ((), ("system:nodes",)):
                headers = impersonation_headers(f"system:node:{foreign_node}", *groups)
                assert (await api.request("GET", node, headers=headers)).code == 403
            with pytest.raises(SetupError, match="no permission"):  # a third one is not granted
                await authorize(api, mode, (ends[0], f"{name}-00002"), Features())

    asyncio.run(play_foul())
    assert world.get("node", foreign_node)


ACTING = """\
apiVersion: fleet.emulator/v1alpha1
kind: NodeAgent
metadata: {name: account}
spec: {userAgent: account/v1, serviceAccount: default/watcher, watches: [{resource: services}]}
---
apiVersion: fleet.emulator/v1alpha1
kind: NodeAgent
metadata: {name: user}
spec: {userAgent: user/v1, user: some-user, reads: [{resource: namespaces}]}
---
apiVersion: fleet.emulator/v1alpha1
kind: NodeAgent
metadata: {name: node}
spec:
  userAgent: node/v1
  user: "system:node:{{node}}"
  reads: [{resource: nodes, name: "{{node}}"}]
"""


def test_agents_act_with_the_printed_rights(world: World, tmp_path: Path) -> None:
    """By constrained impersonation, in the mode of each kind of user, and no other way."""
    profile = tmp_path / "acting.yaml"
    profile.write_text(ACTING)
    named = ("--nodes=2", "--name-prefix=acting")
    kubeconfig = account(world, tmp_path, "acting", f"--profile={profile}", *named)
    audit = play(world, kubeconfig, "acting", f"--profile={profile}")
    modes = {"account/v1": "serviceaccount", "user/v1": "user-info", "node/v1": "arbitrary-node"}
    sent = [each for each in audit if each["userAgent"] in modes]
    assert {each["userAgent"] for each in sent} == set(modes)
    for each in sent:
        assert each["user"]["username"] == f"{ACCOUNT}acting"
        assert each.get("responseStatus", {}).get("code", 200) == 200
        constraint = each["authenticationMetadata"]["impersonationConstraint"]
        assert constraint == f"impersonate:{modes[each['userAgent']]}"
    world.kubectl("delete", "clusterrole", "acting-agents")
    options = (f"--kubeconfig={kubeconfig}", f"--profile={profile}", "--until-ready")
    done = world.fleet("spawn", "--nodes=1", "--name-prefix=acting", *options)
    assert done.returncode == 3, done.stderr
    assert "agent " in done.stderr
    assert "impersonate-on:" in done.stderr
    assert not world.nodes("acting")


@pytest.mark.slow
@pytest.mark.usefixtures("environment")
def test_servers_without_constrained_impersonation_take_the_old_grant(tmp_path: Path) -> None:
    """As a server before 1.36: there the group must be asked for, and only the nodes' is given."""
    audit_log = tmp_path / "audit.jsonl"
    options = ControlPlaneOptions(
        directory=tmp_path / "plane",
        audit_log=audit_log,
        extra_flags={"kube-apiserver": ["feature-gates=ConstrainedImpersonation=false"]},
    )

    async def played() -> None:
        async with ControlPlane(options) as plane:
            old = World(tmp_path, plane.info, audit_log)
            rights = ("--legacy-impersonation", "--nodes=2", "--name-prefix=old")
            kubeconfig = await asyncio.to_thread(account, old, tmp_path, "old", *rights)
            await asyncio.to_thread(play, old, kubeconfig, "old")
            async with await Cluster.connect(ClusterSelection(kubeconfig=kubeconfig)) as cluster:
                api = cluster.api("preflight")
                found = await authorize(api, IdentityMode.IMPERSONATE, ("old-00000",), Features())
                assert found.impersonation is Impersonation.USER_AND_GROUP
                with pytest.raises(SetupError, match="no permission to impersonate nodes"):
                    await probe(api, IdentityMode.IMPERSONATE, "old-00002")

    asyncio.run(played())
    audit = [json.loads(line) for line in audit_log.read_text().splitlines()]
    mine = [e for e in audit if e["user"]["username"] == f"{ACCOUNT}old"]
    sent = [e for e in mine if e["userAgent"].startswith("kubelet/")]
    assert sent
    assert {e["impersonatedUser"]["groups"][0] for e in sent} == {"system:nodes"}
    refused = [e["objectRef"]["resource"] for e in mine if e["responseStatus"]["code"] == 403]
    # Asking who one is without the group is what the probe begins with, and old-00002 is not ours.
    assert set(refused) <= {*RACES, "selfsubjectreviews"}


@pytest.mark.slow
def test_nodes_that_a_server_takes_for_others_are_soon_themselves_again(
    world: World, tmp_path: Path
) -> None:
    """A user with both grants; somebody uses the old one with the credential of a running fleet."""
    kubeconfig = account(world, tmp_path, "both")
    both = world.fleet(
        *("rbac", "--name=both-old", "--service-account=default/both", "--legacy-impersonation"),
        *("--nodes=3", "--name-prefix=both"),
    )
    world.kubectl("apply", "-f", "-", stdin=both.stdout)
    named = (f"--kubeconfig={kubeconfig}", CONFIRMED)
    with world.spawn("both", 3, *named, world.quick()) as run:
        run.until_ready()
        spoilt = ("--as=system:node:both-00000", "--as-group=system:nodes")
        world.kubectl("get", "node", "both-00000", *spoilt, kubeconfig=kubeconfig)
        run.until("their group is named too")
        before = len(world.audit())
        mine = f"{ACCOUNT}both"

        def renewed() -> set[str]:
            return {
                acting(e)["username"]
                for e in world.audit()[before:]
                if e["user"]["username"] == mine and e["verb"] == "update"
                if e["responseStatus"]["code"] == 200 and "impersonatedUser" in e
            }

        eventually(lambda: len(renewed()) == 3, "every node renews its Lease again")
        run.end_well_or_late()


def without(objects: list[Json], role: int, rule: int, resource: str) -> Json:
    """Return a role without one resource of one rule."""
    found: Json = json.loads(json.dumps(objects[role]))
    left = [each for each in found["rules"][rule]["resources"] if each != resource]
    if left:
        found["rules"][rule]["resources"] = left
    else:
        del found["rules"][rule]
    return found


@pytest.mark.parametrize(
    "identity", ["impersonate", pytest.param("shared", marks=pytest.mark.slow)]
)
def test_preflight_names_whatever_right_is_missing(
    world: World, tmp_path: Path, identity: str
) -> None:
    """Each rule of the printed roles is taken away once."""
    name = f"lacks-{identity}"
    kubeconfig = account(world, tmp_path, name, f"--identity={identity}")
    printed = world.fleet(
        "rbac", f"--name={name}", f"--service-account=default/{name}", f"--identity={identity}"
    )
    objects = [each for each in yaml.safe_load_all(printed.stdout) if each]
    cuts = [
        (role, rule, resource)
        for role, each in enumerate(objects)
        for rule, rules in enumerate(each.get("rules", ()))
        for resource in rules["resources"]
    ]
    assert len(cuts) > 15
    features = Features(Fidelity.KUBELET)

    async def played() -> None:
        async with (
            await Cluster.connect(ClusterSelection(kubeconfig=kubeconfig)) as cluster,
            await Cluster.connect(ClusterSelection(kubeconfig=world.info.kubeconfig)) as admin,
        ):
            api, numbers = cluster.api("preflight"), itertools.count()

            async def refusal() -> str:
                node = f"n-{next(numbers)}"  # the server keeps for a while who may be whom
                try:
                    await authorize(api, IdentityMode(identity), (node,), features)
                except SetupError as error:
                    return str(error)
                return ""

            async def settled(wanted: str) -> str:
                """Ask until the authorizer has seen the change."""
                deadline = time.monotonic() + WAIT_MAX_S
                while time.monotonic() < deadline:
                    said = await refusal()
                    if wanted in said and bool(said) == bool(wanted):
                        return said
                    await asyncio.sleep(0.02)
                raise AssertionError(f"{wanted!r} is not in {said!r}")

            await settled("")
            for role, rule, resource in cuts:
                whole = objects[role]
                metadata = whole["metadata"]
                where = f"namespaces/{metadata['namespace']}/" if "namespace" in metadata else ""
                path = (
                    f"/apis/rbac.authorization.k8s.io/v1/{where}{whole['kind'].lower()}s/"
                    f"{metadata['name']}"
                )
                cut = without(objects, role, rule, resource)
                answer = await admin.api("t").request("PUT", path, body=cut)
                assert answer.ok, answer
                said = await settled(resource)
                assert "\n" not in said
                answer = await admin.api("t").request("PUT", path, body=whole)
                assert answer.ok, answer
                await settled("")

    asyncio.run(played())
