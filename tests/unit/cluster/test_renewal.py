"""Credentials that are renewed while a run lasts, with plugins that are real programs."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from world.cluster_fakes import write_kubeconfig

from fleet.cluster import credentials as renewal
from fleet.cluster.credentials import LOOK_EVERY_S, ClusterSelection, Credentials, Renewal
from fleet.controlplane.pki import SelfSigned
from fleet.errors import SetupError
from fleet.host.transports import Transports

EXPIRES_S = 1_577_836_800.0  # 2020-01-01
EXPIRES = "2020-01-01T00:00:00Z"
LATER = "2199-01-01T00:00:00Z"


class World:
    """A plugin that works at first, then fails so often, then works again."""

    def __init__(self, directory: Path, *, fails: int, expires: str = EXPIRES) -> None:
        self.runs = directory / "runs"
        self.path = directory / "plugin"
        form = (
            '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":'
            '{"token":"%s"%s}}\\n'
        )
        expiry = f',"expirationTimestamp":"{expires}"' if expires else ""
        self.path.write_text(
            f"""#!/bin/sh
echo run >> {self.runs}
n=$(wc -l < {self.runs})
if [ "$n" -gt 1 ] && [ "$n" -le {1 + fails} ]; then echo throttled >&2; exit 3; fi
if [ "$n" -eq 1 ]; then printf '{form % ("first", expiry)}'
else printf '{form % ("second", f',"expirationTimestamp":"{LATER}"')}'; fi
"""
        )
        self.path.chmod(0o755)
        version = "client.authentication.k8s.io/v1"
        user: dict[str, Any] = {"exec": {"command": str(self.path), "apiVersion": version}}
        user["exec"] |= {"args": None, "env": None}
        self.kubeconfig = write_kubeconfig(
            directory / "k", {"server": "https://api.example:6443"}, user
        )
        self.now_s = 1000.0
        self.wall_s = EXPIRES_S - 200

    async def load(self) -> tuple[Renewal, Credentials]:
        credentials = await ClusterSelection(kubeconfig=self.kubeconfig).load()
        made = Renewal(credentials, now_s=lambda: self.now_s, wall_s=lambda: self.wall_s)
        return made, credentials

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        self.wall_s += seconds

    @property
    def asked(self) -> int:
        return len(self.runs.read_text().split())


async def test_a_throttled_plugin_is_asked_again_while_its_token_lasts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, fails=3)
    renewal, credentials = await world.load()
    asked = []
    for _ in range(20):
        await renewal.renew()  # never raises: the token is good
        asked.append(world.asked)
        world.pass_s(1)
    assert asked == [2, 2, 3, 3, 3, 3, *[4] * 8, *[5] * 6]  # after 2, 4 and 8 s
    assert credentials.authorization() == b"Bearer second"
    assert not renewal.has_failed
    assert "throttled" in caplog.text
    assert "tried again in 8 s, the present ones last 194 s more" in caplog.text
    assert "renewed, after 3 failures" in caplog.text


async def test_requests_fail_with_the_reason_only_once_the_token_has_run_out(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, fails=2)
    renewal, credentials = await world.load()
    await renewal.renew()
    world.pass_s(200)
    said = r"context test have run out and cannot be renewed: .*plugin failed: .*throttled"
    for _ in range(5):  # requests do not hurry the plugin
        with pytest.raises(SetupError, match=said):
            await renewal.renew()
    assert world.asked == 3
    world.pass_s(4)
    await renewal.renew()
    assert (world.asked, credentials.authorization()) == (4, b"Bearer second")
    assert renewal.has_failed


async def test_a_refused_token_is_renewed_once_for_all_who_used_it(tmp_path: Path) -> None:
    world = World(tmp_path, fails=0, expires="")
    renewal, credentials = await world.load()
    used = credentials.secrets()
    await asyncio.gather(*(renewal.renew(refused=used) for _ in range(32)))
    await renewal.renew(refused=used)
    assert (world.asked, credentials.authorization()) == (2, b"Bearer second")


async def test_a_refused_token_whose_plugin_fails_is_told_and_its_end_is_not_forgotten(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, fails=1, expires=LATER)
    renewal, credentials = await world.load()
    with pytest.raises(SetupError, match=r"are refused and cannot be renewed: .*throttled"):
        await renewal.renew(refused=credentials.secrets())
    assert credentials.expires_s is not None  # or nobody would renew them any more
    await renewal.renew()  # the next request is the server's to judge
    assert world.asked == 2


async def test_a_plugin_that_hangs_stops_nobody_whose_token_is_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "PATIENCE_S", 0.0)
    monkeypatch.setattr(renewal, "PLUGIN_S_MAX", 0.0)
    world = World(tmp_path, fails=0)
    made, credentials = await world.load()
    answer = asyncio.Event()

    async def hang(*, force: bool) -> bool:
        del force
        await answer.wait()
        return False

    monkeypatch.setattr(Credentials, "refresh", lambda _self, *, force: hang(force=force))
    await made.renew()
    assert credentials.authorization() == b"Bearer first"
    world.pass_s(LOOK_EVERY_S * 10)
    with pytest.raises(SetupError, match="no answer within 0 s"):
        await made.renew()
    answer.set()


def transports_of(credentials: Credentials, **does: object) -> Transports:
    """Return the transports of a process, of which one has fleet's own credentials."""
    parts = {
        "_credentials": credentials,
        "_secrets": credentials.secrets(),
        "_own": [SimpleNamespace(**does)],
    }
    return cast("Transports", SimpleNamespace(**parts))


async def test_nodes_get_what_fleets_own_requests_have_renewed(tmp_path: Path) -> None:
    world = World(tmp_path, fails=0)
    told: list[bytes] = []
    renewal, credentials = await world.load()
    fleet = transports_of(credentials, set_authorization=told.append)
    Transports.use_fresh_credentials(fleet)
    assert told == []
    await renewal.renew()  # by the Lease of the run, say
    Transports.use_fresh_credentials(fleet)
    Transports.use_fresh_credentials(fleet)
    assert told == [b"Bearer second"]


async def test_nodes_connect_again_with_a_client_certificate_that_was_replaced(
    tmp_path: Path,
) -> None:
    """While its file is not whole they keep what they have."""
    path, authority = tmp_path / "user.pem", SelfSigned()
    path.write_bytes(authority.pem("first"))
    user = {"client-certificate": str(path), "client-key": str(path)}
    kubeconfig = write_kubeconfig(tmp_path / "k", {"server": "https://api.example:6443"}, user)
    used: list[tuple[str, str]] = []

    def replace(content: bytes) -> None:
        (tmp_path / "fresh").write_bytes(content)
        (tmp_path / "fresh").replace(path)

    credentials = await ClusterSelection(kubeconfig=kubeconfig).load()
    fleet = transports_of(credentials, use_certificate=used.append)
    Transports.use_fresh_credentials(fleet)
    replace(b"-----BEGIN CERTIFICATE-----")
    Transports.use_fresh_credentials(fleet)
    assert used == []
    replace(authority.pem("second"))
    for _ in range(2):
        Transports.use_fresh_credentials(fleet)
    assert used == [(str(path), str(path))]
