"""What fleet's kube-proxy asks of the API server, compared with kubemark's hollow proxy.

The hollow one is kube-proxy's own `Run`; only its proxier is a fake.
Source: pkg/proxy/kubemark/hollow_proxy.go, cmd/kubemark/app/hollow_node.go.
"""

import asyncio
import os
import subprocess
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from support.go_program import build_kubemark

from e2e.e2e_world import Json, World, eventually
from fleet.controlplane.directory import Layout, Pair
from fleet.controlplane.kubeconfig import render_kubeconfig
from fleet.controlplane.pki import Authority

pytest_plugins = ("e2e.e2e_fixtures",)
# It needs kubemark, a build of minutes that no other test of `make test` wants.
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

HOLLOW_USER = "system:kube-proxy"
FLEET_USER = "system:serviceaccount:kube-system:kube-proxy"
NODE = "proxied-00000"
NODE_WATCH = "watch nodes"
"""A hollow proxy has no NodeManager (cmd/kube-proxy/app/server.go, Run); a real one does."""


def asked(world: World, user: str, name: str, begin: int) -> dict[str, Json]:
    """Return each kind of request of a user from some event of the log on: parameters and code."""
    found: dict[str, Json] = {}
    for event in world.audit()[begin:]:
        who = (event.get("impersonatedUser") or event["user"])["username"]
        if who == user and not event.get("userAgent", "").startswith("fleet/"):
            about = event.get("objectRef") or {}
            key = f"{event['verb']} {about.get('resource', event['requestURI'])}"
            query = plain_query(event["requestURI"].replace(name, "NODE"))
            found[key] = {"query": query, "code": event.get("responseStatus", {}).get("code")}
    return found


def plain_query(uri: str) -> list[tuple[str, str]]:
    """Return the parameters in their order, without versions and the times that are drawn."""
    pairs = dict(parse_qsl(urlsplit(uri).query, keep_blank_values=True))
    if "timeoutSeconds" in pairs:
        drawn_s = int(pairs["timeoutSeconds"])
        assert 300 <= drawn_s <= 600
        pairs["timeoutSeconds"] = "drawn"
        if pairs.get("timeout") == f"{drawn_s // 60}m{drawn_s % 60}s":
            pairs["timeout"] = "as drawn"
    if pairs.get("resourceVersion", "0") != "0":
        pairs["resourceVersion"] = "N"
    return list(pairs.items())


def created_event(world: World, host: str) -> Json:
    """Return what is stored of the event with which a proxy starts, but for names and times."""
    events = world.items("events.events.k8s.io", "--field-selector=reason=Starting")
    [found] = [
        each
        for each in events
        if each["reportingController"] == "kube-proxy" and each["regarding"]["name"] == host
    ]
    plain = {key: each for key, each in found.items() if key != "eventTime"}
    metadata = plain.pop("metadata")
    metadata.pop("managedFields", None)
    for key in ("name", "uid", "resourceVersion", "creationTimestamp"):
        metadata.pop(key)
    plain["reportingInstance"] = plain["reportingInstance"].rpartition("-")[0][:10]
    plain["regarding"] = {**plain["regarding"], "name": "NODE"}
    return {**plain, "metadata": metadata}


def test_a_proxy_asks_what_kube_proxy_asks(world: World) -> None:
    kubemark = asyncio.run(build_kubemark())
    directory = world.root / "proxy"
    directory.mkdir()
    kubeconfig = hollow_kubeconfig(world, directory)
    begin = len(world.audit())  # proxies of other tests are the same users
    command = (str(kubemark), "--morph=proxy", "--name=hollow", f"--kubeconfig={kubeconfig}")
    with (
        world.spawn("proxied", 1, "--profile=kube-proxy") as run,
        (directory / "log").open("wb") as log,
    ):
        run.until_ready()
        process = subprocess.Popen(
            command,
            env={**os.environ, "TMPDIR": str(directory)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:

            def of_hollow() -> dict[str, Json]:
                return asked(world, HOLLOW_USER, "hollow", begin)

            def of_fleet() -> dict[str, Json]:
                return asked(world, FLEET_USER, NODE, begin)

            eventually(lambda: len(of_hollow()) == 4, "hollow's requests")
            eventually(lambda: len(of_fleet()) == 5, "fleet's requests")
            hollow, ours = of_hollow(), of_fleet()
            assert ours.pop(NODE_WATCH)["code"] == 200
            assert ours == hollow
            assert created_event(world, NODE) == created_event(world, "hollow")
        finally:
            process.kill()
            process.wait()
        run.end_well_or_late()


def hollow_kubeconfig(world: World, directory: Path) -> Path:
    """Give the hollow proxy a certificate of the user that system:node-proxier is bound to."""
    layout = Layout(world.info.directory)
    authority = Authority.load(Pair(layout.pki / "ca.crt", layout.pki / "ca.key"))
    pair = Pair(directory / "proxy.crt", directory / "proxy.key")
    authority.client(pair, HOLLOW_USER, ())
    path = directory / "kubeconfig"
    path.write_bytes(render_kubeconfig(world.info.url, world.info.ca_file, HOLLOW_USER, pair))
    return path
