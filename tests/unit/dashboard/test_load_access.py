"""What API users are given is theirs alone: no namespace or role of anybody else's goes with it."""

import asyncio

import pytest
import yaml
from world.cluster_fakes import FakeApi

from fleet.cluster.api_client import Answer, Json
from fleet.cluster.cleanup import clean_run
from fleet.cluster.identity import Permission
from fleet.cluster.leftovers import NAMESPACES
from fleet.cluster.ownership import NODES, RUN_LABEL
from fleet.cluster.run_id import LOAD_LABEL, load_name
from fleet.cluster.runs import list_runs
from fleet.dashboard.dashboard import EVERYWHERE, LoadAccess, with_token
from fleet.errors import SetupError
from fleet.k8s.well_known import BINDINGS, ROLES
from fleet.run.clean_command import Choice, clean

RUN = "20260101-000000-abcd"
NAME = f"fleet-load-{RUN}"
OURS = {f"{kind}/{NAME}" for kind in (NAMESPACES, ROLES, BINDINGS)}
LABELS = {LOAD_LABEL: "true", RUN_LABEL: RUN}


class Api(FakeApi):
    """With tokens of service accounts."""

    def _post(self, path: str, asked: Json, sent: Json) -> Answer:
        if path.endswith("/token"):
            return self._answer(201, {"status": {"token": "secret"}})
        return super()._post(path, asked, sent)


def foreign(api: FakeApi) -> set[str]:
    """Put what looks like a load's, but has one mark of it only."""
    for kind in (NAMESPACES, ROLES, BINDINGS):
        api.put(f"{kind}/fleet-load")  # as an older fleet called its own, and anybody may
        api.put(f"{kind}/fleet-load-other", metadata={"labels": LABELS})  # a label, copied
        api.put(f"{kind}/{load_name('gone')}")  # a name
    return set(api.objects)


def test_only_what_was_created_is_removed() -> None:
    api = Api()
    others = foreign(api)
    access = LoadAccess(api, RUN)
    assert asyncio.run(access.create()) == "secret"
    assert set(api.objects) - others > OURS
    assert all(api.objects[path]["metadata"]["labels"] == LABELS for path in OURS)
    api.put(f"{ROLES}/{NAME}", metadata={"labels": LABELS})  # somebody made it anew: another uid
    asyncio.run(access.remove())
    cluster_wide = {
        path for path in api.objects if path.rpartition("/")[0] in (NAMESPACES, BINDINGS)
    }
    assert cluster_wide <= others
    assert f"{ROLES}/{NAME}" in api.objects
    assert others <= set(api.objects)


@pytest.mark.parametrize("kind", [NAMESPACES, ROLES, BINDINGS])
def test_a_foreign_one_of_the_name_is_refused_and_stays(kind: str) -> None:
    api = Api()
    theirs = api.put(f"{kind}/{NAME}")["metadata"]["uid"]
    access = LoadAccess(api, RUN)
    with pytest.raises(SetupError, match="is there and not of this run"):
        asyncio.run(access.create())
    asyncio.run(access.remove())
    assert api.objects[f"{kind}/{NAME}"]["metadata"]["uid"] == theirs
    assert not {path for path in OURS if path in api.objects} - {f"{kind}/{NAME}"}


def test_users_get_a_chosen_role_instead_of_the_least() -> None:
    api = Api()
    asyncio.run(LoadAccess(api, RUN, "view").create())
    assert api.objects[f"{BINDINGS}/{NAME}"]["roleRef"]["name"] == "view"
    assert f"{ROLES}/{NAME}" not in api.objects


def test_a_clean_up_removes_what_a_dead_run_s_users_left() -> None:
    api = Api()
    others = foreign(api)
    asyncio.run(LoadAccess(api, RUN).create())
    [left] = asyncio.run(list_runs(api)).runs
    assert (left.run, left.nodes, left.is_alive) == (RUN, 0, False)
    asyncio.run(clean(api, Choice(expired=True, yes=True)))
    assert not OURS & set(api.objects)
    assert others <= set(api.objects)
    assert asyncio.run(list_runs(api)).runs == []


def test_a_clean_up_asks_for_nothing_that_it_may_not() -> None:
    api = Api()
    asyncio.run(LoadAccess(api, RUN).create())
    api.denied = {
        Permission("delete", "", "namespaces"),
        *(
            Permission("delete", "rbac.authorization.k8s.io", f"clusterrole{s}")
            for s in ("s", "bindings")
        ),
    }
    api.put(f"{NODES}/a-0", metadata={"labels": {RUN_LABEL: RUN}})
    api.log.clear()
    asyncio.run(clean_run(api, RUN))
    assert not [path for _method, path in api.log if path in (NAMESPACES, ROLES, BINDINGS)]
    assert set(api.objects) >= OURS


def test_names_are_dns_labels() -> None:
    assert load_name("") == "fleet-load"
    assert load_name("a-1") == "fleet-load-a-1"
    for run in ("load.fleet", "x" * 63):
        assert load_name(run) == load_name(run)
        assert len(load_name(run)) == len("fleet-load-") + 12
    assert load_name("a.b") != load_name("a.c")


def test_nothing_is_granted_that_writes_to_the_cluster() -> None:
    assert {each.verb for each in EVERYWHERE} == {"get", "list", "watch"}


def test_a_token_takes_the_place_of_the_user() -> None:
    cluster = {"name": "c", "cluster": {"server": "https://s"}}
    given = {
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "admin"}}],
        "clusters": [cluster],
        "users": [{"name": "admin", "user": {"client-key-data": "secret"}}],
    }
    found = with_token(yaml.safe_dump(given).encode(), "t")
    assert b"secret" not in found
    assert yaml.safe_load(found) == {
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "fleet-load"}}],
        "clusters": [cluster],
        "users": [{"name": "fleet-load", "user": {"token": "t"}}],
    }
