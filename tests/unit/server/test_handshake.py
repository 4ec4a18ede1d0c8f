"""Which protocol a kubelet speaks inside of SPDY, and how it refuses the others."""

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from fleet.server.streaming import _handshake

KNOWN = ("v5.channel.k8s.io", "v4.channel.k8s.io")
UPGRADE = (("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"))
VERSION = "X-Stream-Protocol-Version"
V4 = (VERSION, "v4.channel.k8s.io")


def handshake(*headers: tuple[str, str]) -> str | web.Response:
    return _handshake(make_mocked_request("POST", "/exec", CIMultiDict(headers)), KNOWN)


@pytest.mark.parametrize(
    ("named", "chosen"),
    [
        (("v4.channel.k8s.io",), "v4.channel.k8s.io"),
        (("v4.channel.k8s.io, v5.channel.k8s.io",), "v4.channel.k8s.io"),
        (("v9.channel.k8s.io", "v5.channel.k8s.io"), "v5.channel.k8s.io"),
    ],
)
def test_the_first_protocol_of_the_client_that_is_known_is_spoken(
    named: tuple[str, ...], chosen: str
) -> None:
    assert handshake(*UPGRADE, *((VERSION, each) for each in named)) == chosen


def test_what_is_not_known_is_refused_with_what_is() -> None:
    refused = handshake(*UPGRADE, (VERSION, "v8"), (VERSION, "v9"))
    assert isinstance(refused, web.Response)
    assert refused.status == 403
    assert refused.text == (
        'unable to upgrade: unable to negotiate protocol: client supports ["v8" "v9"], server '
        'accepts ["v5.channel.k8s.io" "v4.channel.k8s.io"]\n'
    )
    assert tuple(refused.headers.getall("X-Accepted-Stream-Protocol-Versions")) == KNOWN


@pytest.mark.parametrize("named", [(), ("",), (" , ",)])
def test_a_client_has_to_name_a_protocol(named: tuple[str, ...]) -> None:
    """It would take version 1 for chosen, whose error stream carries plain text."""
    refused = handshake(*UPGRADE, *((VERSION, each) for each in named))
    assert isinstance(refused, web.Response)
    assert refused.status == 400
    assert refused.text == (
        f"unable to upgrade: header {VERSION} does not exist in request with "
        f"{2 + bool(named)} headers\n"
    )


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ((), 500),
        (UPGRADE[1:], 500),
        ((UPGRADE[0], V4), 400),
        ((UPGRADE[0], ("Upgrade", "h2c"), V4), 400),
    ],
)
def test_a_request_without_an_upgrade_is_refused(
    headers: tuple[tuple[str, str], ...], code: int
) -> None:
    refused = handshake(*headers)
    assert isinstance(refused, web.Response)
    assert refused.status == code
    assert refused.text is not None
    assert ("missing upgrade headers in request" in refused.text) == (code == 400)
