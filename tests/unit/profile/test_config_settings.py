"""The options of `fleet spawn`."""

import math
from pathlib import Path

import pytest

from fleet.errors import UsageError
from fleet.profile.option_types import ProfileChoice
from fleet.profile.settings import SHARD_ROOM, Fidelity, IdentityMode, OutputFormat, Settings

TOKEN = "a1b2c3.0123456789abcdef"


def test_defaults_are_those_of_the_interface() -> None:
    settings = Settings.from_options()
    assert (settings.nodes, settings.name_prefix) == (100, "fleet")
    assert settings.profiles == (ProfileChoice("default"),)
    assert (settings.fidelity, settings.identity) == (Fidelity.KUBELET, IdentityMode.IMPERSONATE)
    assert (settings.output, settings.duration_ns) == (OutputFormat.TEXT, None)
    assert not settings.names_cluster


@pytest.mark.parametrize(
    ("rate", "pace", "passed_on"),
    [("", "adaptive", 0.0), ("50", "50/s", 25.0), ("max", "max", math.inf)],
)
def test_a_rate_is_a_number_or_all_at_once(rate: str, pace: str, passed_on: float) -> None:
    settings = Settings.from_options(nodes=4, processes=2, **({"rate": rate} if rate else {}))
    assert settings.pace == pace
    assert [share.rate for share in settings.shares()] == [passed_on] * 2


@pytest.mark.parametrize(
    ("options", "is_settled"),
    [
        ({}, True),
        ({"start": "cold"}, False),
        ({"start": "cold", "fidelity": "light"}, True),
        ({"manage": "a=b"}, False),
    ],
)
def test_nodes_are_complete_when_they_are_created_unless_they_start_cold(
    *, options: dict[str, object], is_settled: bool
) -> None:
    assert Settings.from_options(**options).makes_settled is is_settled


def test_options_are_read_as_click_hands_them_over() -> None:
    settings = Settings.from_options(
        nodes=5,
        profile=("gpu=1", "dir=x/mine.yaml=0.5", "default=2.5"),
        duration="1m30s",
        context="kind-x",
        run_dir="runs/1",
        story=("fleet-00001",),
        audit_log=None,
        command=(),
    )
    assert settings.profiles == (
        ProfileChoice("gpu", 2),
        ProfileChoice("dir=x/mine.yaml", 1),
        ProfileChoice("default", 5),
    )
    assert settings.duration_ns == 90_000_000_000
    assert settings.run_dir == Path("runs/1")
    assert settings.names_cluster


def test_component_flags_get_their_dashes() -> None:
    settings = Settings.from_options(apiserver_flag=("-v=2", "--profiling"), etcd_flag=("a=b=c",))
    assert settings.apiserver_flags == ("--v=2", "--profiling")
    assert settings.etcd_flags == ("--a=b=c",)


def test_names_and_indices_follow_slot_and_shard() -> None:
    alone = Settings.from_options(nodes=3)
    assert list(alone.node_names()) == ["fleet-00000", "fleet-00001", "fleet-00002"]
    assert alone.node_index(2) == 2
    shard = Settings.from_options(nodes=3, shard=12, name_prefix="x")
    assert shard.node_name(2) == "x-0012-00002"
    assert shard.node_index(2) == 38
    assert Settings.from_options(nodes=100_000).node_name(99_999) == "fleet-99999"
    assert shard.slot_of("x-0012-00002") == 2
    for foreign in ("x-0011-00002", "x-0012-2", "x-0012-", "x-00002"):
        assert shard.slot_of(foreign) is None


def test_shards_have_room_to_grow_where_a_dashboard_steers_them() -> None:
    assert Settings.from_options(nodes=3, shard=1).stride == 3
    worker = Settings.from_options(nodes=3, shard=1, locust_master="here:1")
    assert (worker.stride, worker.node_index(4)) == (SHARD_ROOM, SHARD_ROOM + 4)
    wide = Settings.from_options(nodes=9_001, processes=2, dashboard=True)
    assert [wide.share(number).node_index(0) for number in (0, 1)] == [0, 4501]
    given = Settings.from_options(nodes=8, processes=2, dashboard=True, shard_stride=50)
    assert given.share(1).node_index(0) == 50
    assert given.share(1).share(0).stride == 50


def test_a_dashboard_reaches_what_was_confirmed_and_no_more() -> None:
    default = Settings.from_options(nodes=10, dashboard=True)
    assert (default.most, len(list(default.node_names()))) == (10, 10)
    given = Settings.from_options(nodes=10, max_nodes=25, dashboard=True, processes=2)
    assert given.most == 25
    assert [given.share(number).most for number in (0, 1)] == [13, 12]
    assert [given.share(number).nodes for number in (0, 1)] == [5, 5]
    for wrong, words in (
        ({"nodes": 10, "max_nodes": 9, "dashboard": True}, "9 is less than the 10 of --nodes"),
        ({"max_nodes": 100_001, "dashboard": True}, "--max-nodes: 100001"),
        (
            {"max_nodes": 100_000, "dashboard": True, "name_prefix": "a" * 58},
            "shorten the prefix by 1",
        ),
    ):
        with pytest.raises(UsageError, match=words):
            Settings.from_options(**wrong)


def test_a_shard_may_be_what_the_hostname_ends_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "fleet-worker-17")
    assert Settings.from_options(shard="hostname").shard == 17
    monkeypatch.setattr("platform.node", lambda: "laptop")
    with pytest.raises(UsageError, match=r"--shard: .*'laptop' does not end with a number"):
        Settings.from_options(shard="hostname")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name_prefix": "a" * 58}, "--name-prefix: "),
        ({"name_prefix": "a" * 53, "shard": 0}, "--name-prefix: "),
        ({"identity": "csr", "fidelity": "light"}, "--identity csr needs --fidelity kubelet"),
        (
            {"identity": "csr", "context": "c"},
            "--identity csr needs --bootstrap-token or --bootstrap-kubeconfig",
        ),
        (
            {"identity": "csr", "bootstrap_token": "a1b2c3.secret"},
            "--bootstrap-token: it is not ID.SECRET",
        ),
        (
            {"identity": "csr", "bootstrap_token": TOKEN, "bootstrap_kubeconfig": Path("b")},
            "--bootstrap-token excludes --bootstrap-kubeconfig",
        ),
        ({"cert_dir": Path("d")}, "--cert-dir is for --identity csr"),
        ({"bootstrap_token": TOKEN}, "--bootstrap-token is for --identity csr"),
        ({"identity": "me"}, "--identity: 'me' is not one of 'impersonate', 'csr' or 'shared'"),
        ({"rate": float("inf")}, "--rate: 'inf' is neither"),
        ({"shard": "x"}, "--shard: 'x' is not a whole number"),
        ({"nodes": 9, "shard": 0, "shard_stride": 8}, "--shard-stride: a shard has 9 nodes"),
        ({"profile": ("a=x",)}, "--profile: 'a=x': the weight 'x' is not a number above 0"),
        ({"profile": ("",)}, "--profile: is empty"),
        ({"profile": ("a=0.00001", "b")}, "--profile: the weights need 100001 nodes"),
        (
            {"serve": "ports", "serve_at": "10.0.0.1:65500", "nodes": 100},
            "--serve-at: 100 ports from 65500 on are too many",
        ),
        (
            {"provider_id": "aws:///{{zone}}"},
            "--provider-id: 'aws:///{{zone}}' is neither none nor",
        ),
        ({"provider_id": "aws:///{{nam}}"}, "--provider-id: '{{nam}}' is not one of name, index"),
        (
            {"provider_id": "none", "manage": "a=b"},
            "--manage excludes --provider-id none: these Nodes keep their providerIDs",
        ),
        ({"manage": "a=b,"}, "--manage: 'a=b,' is no label selector such as"),
        ({"manage": " "}, "--manage: ' ' is no label selector such as"),
        (
            {"manage": "a=b", "fidelity": "light"},
            "--manage excludes --fidelity light: light is for",
        ),
        ({"manage": "a=b", "identity": "csr"}, "--manage excludes --identity csr: these nodes"),
        ({"manage": "a=b", "watches": "shared"}, "--manage excludes --watches shared: each of"),
        ({"manage": "a=b", "processes": 2}, "--manage excludes --processes 2: one process"),
        ({"manage": "a=b", "keep": True}, "--manage excludes --keep True: these Nodes always"),
        ({"command": ("true",), "until_ready": True}, "a command ends the run itself"),
        ({"context": "x", "fsync": True}, "--fsync is for the local control plane"),
        ({"context": "x", "scheduler_flag": ("v=1",)}, "--scheduler-flag is for the local"),
        ({"nods": 1}, "--nods: unknown key 'nods'; did you mean 'nodes'?"),
    ],
)
def test_a_wrong_option_is_named_by_its_flag(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings.from_options(**options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_given_choices_are_reduced_too() -> None:
    settings = Settings.from_options(profiles=(ProfileChoice("a", 4), ProfileChoice("b", 2)))
    assert settings.profiles == (ProfileChoice("a", 2), ProfileChoice("b", 1))


def test_the_first_and_the_last_node_are_of_all_processes() -> None:
    assert Settings.from_options(nodes=1).end_names == ("fleet-00000",)
    assert Settings.from_options(nodes=3).end_names == ("fleet-00000", "fleet-00002")
    assert Settings.from_options(nodes=5, processes=2, shard=1).end_names == (
        "fleet-0002-00000",
        "fleet-0003-00001",
    )


@pytest.mark.parametrize(
    "selector",
    ["a=b", "a==b", "a!=b", "a=", "a", "!a", "x.io/a in (b, c),d notin (e)", " a = b , c "],
)
def test_a_label_selector_is_taken_as_kubectl_takes_it(selector: str) -> None:
    assert Settings.from_options(manage=selector).manage == selector.strip()


@pytest.mark.parametrize("selector", ["a=b c", "a in b", "=b", "a=b,", "-a", "a in (b", "a>1"])
def test_what_is_no_label_selector_is_refused(selector: str) -> None:
    with pytest.raises(UsageError, match="is no label selector"):
        Settings.from_options(manage=selector)
