"""Who each node is: impersonated, by its own certificate, or the given user; and what it may do.

    impersonate   one credential; `Impersonate-User: system:node:N` on each node's connection
    csr           each node's own client certificate; no header
    shared        the given user for all; no header

Since 1.36 a server adds the group `system:nodes` itself to users that may impersonate in the mode
`arbitrary-node`, as long as only the user name is asked for. Naming the group forces the broad old
grant (any user, any group), so it is sent only where the probe finds it needed.
Source: apiserver/pkg/endpoints/filters/impersonation/mode.go, arbitraryNodeImpersonationMode.
"""

import enum
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from fleet.cluster.api_client import Answer, Api, Json, each, expect
from fleet.errors import DeniedError, SetupError
from fleet.k8s.well_known import NODE_USER, NODES_GROUP
from fleet.metrics import Requests
from fleet.profile.node_model import NodeModel
from fleet.profile.settings import Fidelity, IdentityMode, Settings

REFUSALS_MIN = 10  # fewer are no storm
AUTHENTICATION = "authentication.k8s.io"
CERTIFICATES = "certificates.k8s.io"
COORDINATION = "coordination.k8s.io"
STORAGE = "storage.k8s.io"
IMPERSONATE_ON = "impersonate-on:arbitrary-node:"
SIGNERS = ("kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving")
SELF_REVIEW = f"/apis/{AUTHENTICATION}/v1/selfsubjectreviews"
ACCESS_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
NAMELESS_VERBS = frozenset({"create", "deletecollection", "list", "watch"})
"""RBAC cannot name what they are about, or fleet asks for all at once."""
OF_ONE_NODE = frozenset(
    {("", "nodes"), ("", "users"), (AUTHENTICATION, "nodes"), (STORAGE, "csinodes")}
)
LEASE_NAMESPACE = "kube-node-lease"
RUN_NAMESPACE = "default"
"""Where the leases of running fleets live; in kube-node-lease they would look like nodes'."""


class Impersonation(enum.Enum):
    """Which headers make a node of the credential."""

    NONE = enum.auto()
    USER = enum.auto()  # constrained impersonation, mode arbitrary-node
    USER_AND_GROUP = enum.auto()  # the old grant


class Identity(NamedTuple):
    """How the nodes of a run show who they are."""

    mode: IdentityMode
    impersonation: Impersonation = Impersonation.NONE

    def user_of(self, node_name: str) -> bytes:
        """Return the user that the node's connection names with every request, b"" for none."""
        if self.impersonation is Impersonation.NONE:
            return b""
        return f"{NODE_USER}{node_name}".encode()

    @property
    def group(self) -> bytes:
        """Return the group that is named next to the user, b"" for none."""
        is_named = self.impersonation is Impersonation.USER_AND_GROUP
        return NODES_GROUP.encode() if is_named else b""


class Permission(NamedTuple):
    """One right to check. `verbs` of one resource stand together to be read together."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        """Say it the way RBAC rules do: `verb resource.group`."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        shown = f"{self.verb} {resource}{'.' if self.group else ''}{self.group}"
        if self.name:
            shown += f" {self.name}"
        return f"{shown} (namespace {self.namespace})" if self.namespace else shown


async def probe(api: Api, mode: IdentityMode, node_name: str) -> Identity:
    """Find out which headers make a node of us, by asking the server who it takes us for.

    Raises DeniedError if this user may not impersonate nodes at all. The user name alone is tried
    first, and only then the group. A server remembers per user name which mode succeeded last and
    tries that one first, so to a user with both grants one request with the group, from whatever
    client (`kubectl --as system:node:a --as-group system:nodes`), makes it take the old grant for
    names without a group too, which then lack `system:nodes` and are forbidden everything. So a
    storm of 403s in a run with `USER` is a reason to probe again: see `RefusalWatch`.
    """
    if mode is not IdentityMode.IMPERSONATE:
        return Identity(mode)
    user = NODE_USER + node_name
    alone = await who_am_i(api, impersonation_headers(user))
    if _is_node(alone):
        return Identity(mode, Impersonation.USER)
    both = await who_am_i(api, impersonation_headers(user, NODES_GROUP))
    if _is_node(both):
        return Identity(mode, Impersonation.USER_AND_GROUP)
    refusal = _refusal(both if alone.ok else alone)
    raise DeniedError(f"no permission to impersonate nodes: {refusal}; choose --identity shared")


class RefusalWatch:
    """Finds in the answers to nodes whether the server has come to take them for others."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._seen = (0, 0)

    def is_storm(self) -> bool:
        """Return whether most answers since the last call were 403s."""
        total = refused = 0
        for codes in self._requests.rows.values():
            total += sum(each.count for each in codes.values())
            refused += codes[403].count if 403 in codes else 0
        before, self._seen = self._seen, (total, refused)
        news = refused - before[1]
        return news >= REFUSALS_MIN and 2 * news > total - before[0]


async def check_permissions(
    api: Api, needed: Iterable[Permission], headers: Iterable[tuple[str, str]] = ()
) -> None:
    """Ask the server about every right, many at a time; `headers` may name who is meant.

    Raises DeniedError with all that are missing, before anything is created.
    """
    wanted = list(dict.fromkeys(needed))
    denied: set[Permission] = set()

    async def ask(permission: Permission) -> None:
        if not await is_allowed(api, permission, headers):
            denied.add(permission)

    await each(wanted, ask)
    if denied:
        verbs: dict[Permission, list[str]] = {}  # of one resource: "list,watch nodes"
        for permission in wanted:
            if permission in denied:
                verbs.setdefault(permission._replace(verb=""), []).append(permission.verb)
        missing = "; ".join(str(p._replace(verb=",".join(each))) for p, each in verbs.items())
        raise DeniedError(f"no permission (RBAC), {len(denied)} missing: {missing}")


async def is_allowed(
    api: Api, permission: Permission, headers: Iterable[tuple[str, str]] = ()
) -> bool:
    """Return whether fleet's user has one right."""
    named = {key: value for key, value in permission._asdict().items() if value}
    return await _is_granted(api, {"resourceAttributes": named}, headers)


async def may_read(api: Api, path: str) -> bool:
    """Return whether fleet's user may read what is no resource, such as /metrics."""
    return await _is_granted(api, {"nonResourceAttributes": {"verb": "get", "path": path}})


async def _is_granted(api: Api, spec: Json, headers: Iterable[tuple[str, str]] = ()) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": spec,
    }
    answer = await api.request("POST", ACCESS_REVIEW, body=review, headers=headers)
    status = expect(answer, "cannot check permissions (SelfSubjectAccessReview)").get("status", {})
    return bool(status.get("allowed"))


class Features(NamedTuple):
    """What a run does that takes rights of its own."""

    fidelity: Fidelity = Fidelity.KUBELET
    storage: bool = False  # be the controllers of simulated CSI drivers
    static_pods: bool = False
    dynamic_resources: bool = False
    polled_objects: bool = False
    pull_tokens: bool = False
    approve_csrs: bool = False
    own_watches: bool | None = None  # each node opens its own; None: in kubelet
    serves: bool = False  # the kubelets' servers ask who may
    manages: bool = False  # be the kubelet of Nodes that others make
    keeps_records: bool = False  # in the cluster, for `fleet report --run`
    certificate_requests: bool = True  # kubelets watch those of their pods, since 1.37

    @property
    def has_own_watches(self) -> bool:
        return self.fidelity is Fidelity.KUBELET if self.own_watches is None else self.own_watches


def features_of(settings: Settings, models: Iterable[NodeModel]) -> Features:
    models = tuple(models)
    return Features(
        settings.fidelity,
        storage=any(model.csi_drivers for model in models),
        static_pods=any(model.kubelet.static_pod_path for model in models),
        dynamic_resources=any(model.dra_drivers for model in models),
        polled_objects=any(model.kubelet.polls_objects for model in models),
        pull_tokens=any(model.credential_providers for model in models),
        approve_csrs=settings.approve_csrs,
        own_watches=settings.has_own_watches,
        serves=settings.is_served,
        manages=bool(settings.manage),
        keeps_records=settings.keeps_records,
        certificate_requests=any(each.release.watches_certificate_requests for each in models),
    )


async def authorize(
    api: Api, mode: IdentityMode, names: tuple[str, ...], features: Features
) -> Identity:
    """Find out who the nodes will be, and that every right is there. Raises SetupError.

    Rights may be for nodes by name, so they are asked for by `names`: the first and the last of
    the run. All of them would be thousands of questions.
    """
    await check_permissions(api, narrowed(own_permissions(features), names))
    identity = await probe(api, mode, names[0])
    for name in names[1:]:
        if await probe(api, mode, name) != identity:
            raise SetupError(
                f"the server takes {names[0]} and {name} for nodes by different grants"
            )
    await check_permissions(api, narrowed(node_permissions(identity, features), names))
    return identity


def is_of_one_node(permission: Permission) -> bool:
    """Whether a right is about an object that has a node's name, and the request says which.

    What may be done as a node needs no names: they are in the right to be it.
    Source: apiserver/pkg/endpoints/filters/impersonation/mode.go, authorizeUsername: `nodes` with
    the node's name.
    """
    verb, group, resource, _subresource, namespace, name = permission
    if name or verb in NAMELESS_VERBS or verb.startswith("impersonate-on:"):
        return False
    if (group, resource) == (COORDINATION, "leases"):
        return namespace in {LEASE_NAMESPACE, RUN_NAMESPACE}
    return (group, resource) in OF_ONE_NODE


def run_lease_name(prefix: str) -> str:
    """Return the name of the Lease that guards a prefix of nodes' names."""
    return f"fleet-run-{prefix}"


def _name_for(permission: Permission, node: str) -> str:
    """Return what the object of a right is called that is about one node."""
    if permission.resource == "users":
        return f"{NODE_USER}{node}"
    if permission.namespace == RUN_NAMESPACE:
        # A prefix of its own for each shard: Leases in this namespace guard much else, too.
        return run_lease_name(node.rpartition("-")[0] or node)
    return node


def narrowed(permissions: Iterable[Permission], names: Sequence[str]) -> list[Permission]:
    """Return the rights for these nodes only, as far as rights can name any; without, for all."""
    found = (
        each._replace(name=_name_for(each, name)) if name else each
        for each in permissions
        for name in (names if names and is_of_one_node(each) else [""])
    )
    return list(dict.fromkeys(found))


Calls = tuple[tuple[str, str, str, str, str], ...]
"""Group, resource, subresource, namespace ("" for all) and verbs."""

_FILE = Path(__file__).with_name("rights.toml")
_CALLS: dict[str, Calls] = {
    name: tuple(map(tuple, calls))
    for name, calls in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()
}


def own_permissions(features: Features) -> list[Permission]:
    """Return what fleet itself needs, in every identity mode."""
    return [
        Permission("get", "", "namespaces", name="kube-system"),
        *_expand(_CALLS["own"]),
        *(_expand(_CALLS["managed"]) if features.manages else ()),
        *(_expand(_CALLS["csi_controller"]) if features.storage else ()),
    ]


def optional_permissions(features: Features) -> list[Permission]:
    """Return what is granted where it is asked for, and what a run goes on without."""
    name = "extension-apiserver-authentication"
    ca = Permission("get", "", "configmaps", namespace="kube-system", name=name)
    return [
        *([ca] if features.serves else ()),
        *(_expand(_CALLS["record"]) if features.keeps_records else ()),
    ]


def watch_calls(features: Features) -> Calls:
    """Return the watches that serve the kubelets, their own and shared ones."""
    is_kubelet, has_own = features.fidelity is Fidelity.KUBELET, features.has_own_watches
    if not (is_kubelet or has_own):
        return (("", "pods", "", "", "list watch"),)
    certificates = _CALLS["certificate"] if has_own and features.certificate_requests else ()
    return (*_CALLS["watch"], *certificates, *(_CALLS["object"] if is_kubelet else ()))


def node_calls(features: Features) -> Calls:
    """Return everything that the nodes of a run ask of the server."""
    # In light they mount no volumes, read no ConfigMaps and Secrets, and pull nothing.
    is_kubelet = features.fidelity is Fidelity.KUBELET
    return (
        *_CALLS["kubelet"],
        *(watch_calls(features) if features.has_own_watches else ()),
        *(_CALLS["kubelet_only"] if is_kubelet else ()),
        *(_CALLS["storage"] if is_kubelet and features.storage else ()),
        *(_CALLS["static_pod"] if features.static_pods else ()),
        *(_CALLS["dynamic_resource"] if features.dynamic_resources else ()),
        *(_CALLS["polled_object"] if is_kubelet and features.polled_objects else ()),
        *(_CALLS["service_account"] if is_kubelet and features.pull_tokens else ()),
        *(_CALLS["review"] if features.serves else ()),
    )


def node_permissions(identity: Identity, features: Features) -> list[Permission]:
    """Return what fleet's user needs so that its nodes can do what kubelets do.

    Impersonated nodes have their rights from the server's Node authorizer, so fleet's user needs
    only the right to be them. The probe has shown the old grant, which is for everything at once;
    the new one is given verb by verb, and RBAC has no wildcard within a verb:
    `impersonate-on:arbitrary-node:*` matches nothing.
    """
    own = [] if features.has_own_watches else _expand(watch_calls(features))
    calls = node_calls(features)
    if identity.impersonation is Impersonation.USER:
        return [*(p._replace(verb=IMPERSONATE_ON + p.verb) for p in _expand(calls)), *own]
    if identity.impersonation is Impersonation.USER_AND_GROUP:
        return own
    if identity.mode is IdentityMode.CSR:
        # To approve the nodes' own certificate requests.
        approval = [
            Permission("update", CERTIFICATES, "certificatesigningrequests", "approval"),
            *(Permission("approve", CERTIFICATES, "signers", name=signer) for signer in SIGNERS),
        ]
        return [*(approval if features.approve_csrs else ()), *own]
    return [*_expand(calls), *own]


def impersonation_permissions(impersonation: Impersonation) -> list[Permission]:
    """Return what the probe looks for: the right to be a node.

    Without names (see `narrowed`) the old grant is for any user: RBAC has no prefixes.
    """
    if impersonation is Impersonation.USER:
        return [
            Permission("impersonate:arbitrary-node", AUTHENTICATION, "nodes"),
            Permission(f"{IMPERSONATE_ON}create", AUTHENTICATION, "selfsubjectreviews"),
        ]
    if impersonation is Impersonation.USER_AND_GROUP:
        return [
            Permission("impersonate", "", "users"),
            Permission("impersonate", "", "groups", name=NODES_GROUP),
        ]
    return []


def _expand(calls: Calls) -> list[Permission]:
    return [
        Permission(verb, group, resource, subresource, namespace)
        for group, resource, subresource, namespace, verbs in calls
        for verb in verbs.split()
    ]


def impersonation_headers(user: str, *groups: str) -> list[tuple[str, str]]:
    """Return the headers of a request that is made as somebody else."""
    return [("Impersonate-User", user), *(("Impersonate-Group", group) for group in groups)]


async def who_am_i(api: Api, headers: Iterable[tuple[str, str]]) -> Answer:
    """Ask the server whom it takes us for."""
    review = {"apiVersion": f"{AUTHENTICATION}/v1", "kind": "SelfSubjectReview"}
    return await api.request("POST", SELF_REVIEW, body=review, headers=headers)


async def who_fleet_is(api: Api) -> str:
    """Return the user name of fleet's credentials, "" if the server does not say."""
    return str(_user(await who_am_i(api, ())).get("username", ""))


def _user(answer: Answer) -> Json:
    found: Json = answer.body.get("status", {}).get("userInfo", {}) if answer.ok else {}
    return found


def _is_node(answer: Answer) -> bool:
    return NODES_GROUP in (_user(answer).get("groups") or ())


def _refusal(answer: Answer) -> str:
    return answer.message if not answer.ok else f"the server leaves out the group {NODES_GROUP}"
