import asyncio

import pytest
from world.cluster_fakes import FakeApi

from fleet.cluster.identity import (
    CERTIFICATES,
    SIGNERS,
    Features,
    Identity,
    Impersonation,
    Permission,
    RefusalWatch,
    authorize,
    check_permissions,
    node_permissions,
    own_permissions,
    probe,
)
from fleet.errors import SetupError
from fleet.metrics import Requests
from fleet.profile.settings import Fidelity, IdentityMode
from fleet.wire.api.operations import OPERATIONS
from fleet.wire.api.watch import WATCH_RESOURCES


def run_probe(api: FakeApi, mode: IdentityMode = IdentityMode.IMPERSONATE) -> Identity:
    return asyncio.run(probe(api, mode, "fleet-00000"))


@pytest.mark.parametrize("last", [False, True])
def test_rights_are_asked_for_by_the_names_of_the_run(*, last: bool) -> None:
    """They may be for nodes by name, and for fewer than the run has."""
    api, names = FakeApi(), ("a-0", "a-9")
    for verb in ("get", "patch", "delete"):  # what RBAC says to rules with names
        api.denied.add(Permission(verb, "", "nodes"))
    asyncio.run(authorize(api, IdentityMode.SHARED, names, Features()))
    api.denied.add(Permission("delete", "", "nodes", name=names[last]))
    with pytest.raises(SetupError, match=f"1 missing: delete nodes {names[last]}"):
        asyncio.run(authorize(api, IdentityMode.SHARED, names, Features()))


NODES, OTHERS = ("system:nodes",), ("system:authenticated",)
USER, USER_AND_GROUP = Impersonation.USER, Impersonation.USER_AND_GROUP


@pytest.mark.parametrize(
    ("alone", "found", "group", "requests"),
    [
        # To ask for the group too would make the server prefer the old grant.
        (NODES, USER, b"", 1),
        (OTHERS, USER_AND_GROUP, b"system:nodes", 2),
        (None, USER_AND_GROUP, b"system:nodes", 2),  # forbidden
    ],
)
def test_the_group_is_sent_only_to_servers_that_need_it(
    alone: tuple[str, ...] | None, found: Impersonation, group: bytes, requests: int
) -> None:
    api = FakeApi()
    api.groups_of_user_alone = alone
    identity = run_probe(api)
    assert identity.impersonation is found
    assert (identity.user_of("a-1"), identity.group) == (b"system:node:a-1", group)
    assert len(api.log) == requests


@pytest.mark.parametrize("alone", [OTHERS, None])
def test_who_does_not_become_a_node_is_told_what_to_grant(alone: tuple[str, ...] | None) -> None:
    api = FakeApi()
    api.groups_of_user_alone, api.groups_with_group = alone, None
    with pytest.raises(SetupError, match=r"forbidden.*shared") as said:
        run_probe(api)
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("mode", [IdentityMode.SHARED, IdentityMode.CSR])
def test_other_identities_send_no_headers_and_ask_nothing(mode: IdentityMode) -> None:
    api = FakeApi()
    identity = run_probe(api, mode)
    assert (identity.user_of("a-1"), identity.group) == (b"", b"")
    assert not api.log


def test_all_missing_rights_are_named_in_one_line() -> None:
    api = FakeApi()
    api.denied = {
        Permission("delete", "storage.k8s.io", "csinodes"),
        Permission("list", "", "nodes"),
        Permission("watch", "", "nodes"),
    }
    with pytest.raises(SetupError) as said:
        asyncio.run(check_permissions(api, own_permissions(Features())))
    assert str(said.value) == (
        "no permission (RBAC), 3 missing: list,watch nodes; delete csinodes.storage.k8s.io"
    )
    assert all(method == "POST" and "reviews" in path for method, path in api.log)


def test_each_right_is_asked_once() -> None:
    api = FakeApi()
    asyncio.run(check_permissions(api, own_permissions(Features()) * 2))
    assert len(api.log) == len(own_permissions(Features()))


def test_constrained_impersonation_needs_each_verb_by_name() -> None:
    needed = node_permissions(Identity(IdentityMode.IMPERSONATE, Impersonation.USER), Features())
    prefix = "impersonate-on:arbitrary-node:"
    assert all(permission.verb.startswith(prefix) for permission in needed)
    assert Permission(f"{prefix}patch", "", "nodes", "status") in needed
    assert Permission(f"{prefix}create", "", "serviceaccounts", "token") in needed


def test_the_old_grant_is_shown_by_the_probe_alone() -> None:
    identity = Identity(IdentityMode.IMPERSONATE, Impersonation.USER_AND_GROUP)
    assert node_permissions(identity, Features()) == []


def test_shared_needs_everything_that_kubelets_do() -> None:
    needed = node_permissions(Identity(IdentityMode.SHARED), Features())
    coordination = "coordination.k8s.io"
    assert Permission("update", coordination, "leases", "", "kube-node-lease") in needed
    assert Permission("watch", "", "pods") in needed


def test_light_needs_its_one_pods_watch_and_no_secrets() -> None:
    identity = Identity(IdentityMode.IMPERSONATE, Impersonation.USER)
    needed = node_permissions(identity, Features(Fidelity.LIGHT))
    assert Permission("watch", "", "pods") in needed
    assert not any(permission.resource == "secrets" for permission in needed)


def test_nodes_with_certificates_need_nothing_of_fleets_user_unless_it_approves() -> None:
    identity = Identity(IdentityMode.CSR)
    assert node_permissions(identity, Features()) == []
    needed = node_permissions(identity, Features(approve_csrs=True))
    assert Permission("update", CERTIFICATES, "certificatesigningrequests", "approval") in needed
    assert {p.name for p in needed if p.verb == "approve"} == set(SIGNERS)


def test_the_table_has_every_call_and_watch_of_a_kubelet() -> None:
    """What is missing here is a 403 in a run with rights of its own."""
    everything = Features(
        static_pods=True,
        dynamic_resources=True,
        polled_objects=True,
        pull_tokens=True,
        storage=True,
    )
    needed = node_permissions(Identity(IdentityMode.SHARED), everything)
    granted = {(p.verb, f"{p.resource}/{p.subresource}".rstrip("/")) for p in needed}
    verbs = {"POST": "create", "PUT": "update"}
    calls = {
        (verbs.get(each.verb, each.verb.lower()), each.resource) for each in OPERATIONS.values()
    }
    watches = {
        (verb, resource) for resource in WATCH_RESOURCES.values() for verb in ("list", "watch")
    }
    assert not (calls | watches) - granted
    assert not granted - (calls | watches), "more than kubelets do"


def answered(requests: Requests, code: int, count: int) -> None:
    for _ in range(count):
        requests.record(("PUT", "leases"), code, 1)


def test_a_storm_of_refusals_is_told_from_the_few_that_nodes_always_get() -> None:
    requests = Requests()
    watch = RefusalWatch(requests)
    answered(requests, 200, 1000)
    answered(requests, 403, 40)
    assert not watch.is_storm()
    answered(requests, 403, 9)
    assert not watch.is_storm(), "all, but too few"
    answered(requests, 403, 30)
    answered(requests, 200, 29)
    assert watch.is_storm()
    assert not watch.is_storm(), "nothing new"
