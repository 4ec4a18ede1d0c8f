"""Nodes with certificates of their own: bootstrapped, approved, kept, renewed."""

import datetime as dt
import json
import stat
import time
from collections import Counter
from http import HTTPStatus
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from e2e.audit_requests import assert_refusals_end, seconds
from e2e.e2e_world import WATCHED, Json, World, eventually, workload
from e2e.fault_world import order
from e2e.lateness import assert_done
from fleet.clock import Draws
from fleet.profile.loader import show_profile

pytest_plugins = ["e2e.e2e_fixtures"]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SIGNING_REQUESTS = "certificatesigningrequests"
LIFE_S = 34
"""Of a certificate that is to be renewed soon: 70 % of it are over 6 s before a kubelet looks for
the new one, each 10 s, and that is 4 s before its end. A busy machine needs some of both."""
APPROVED_WITHIN_S = 5
"""What is asked for as the run ends may find nobody who approves it."""
NO_APPROVER = (
    "--controller-manager-flag=controllers=*,-certificatesigningrequest-approving-controller"
)


def of_nodes(audit: list[Json], prefix: str) -> list[Json]:
    """Return the requests that the nodes of a fleet made under their own names."""
    user = f"system:node:{prefix}-"
    return [each for each in audit if each["user"]["username"].startswith(user)]


def created(audit: list[Json], user: str) -> list[Json]:
    """Return the signing requests that users made."""
    return [
        each
        for each in audit
        if each["verb"] == "create"
        and each["objectRef"]["resource"] == SIGNING_REQUESTS
        and each["user"]["username"].startswith(user)
    ]


def test_nodes_join_with_certificates_and_run_pods(world: World) -> None:
    """Everything that a node sends pleases the Node authorizer and NodeRestriction."""
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}, "data": {}}
    volume = {"name": "v", "configMap": {"name": "own"}}
    world.apply(config)
    before = len(world.audit())
    with world.spawn("own", 3, "--identity=csr") as run:
        run.until_ready()
        certificates = sorted((world.info.directory / "certificates").glob("own-*/*.pem"))
        assert [each.parent.name for each in certificates] == [
            "own-00000",
            "own-00001",
            "own-00002",
        ]
        assert {stat.S_IMODE(each.stat().st_mode) for each in certificates} == {0o600}
        world.apply(workload("Deployment", "own", 3, volumes=[volume]))
        eventually(lambda: len(world.ready_pods("own")) == 3, "the pods are Ready")
        world.kubectl("delete", "deployment", "own")
        eventually(lambda: not world.pods("own"), "the pods are gone")
        run.end_well_or_late()
    audit = world.audit()[before:]
    sent = of_nodes(audit, "own")
    assert {each["user"]["groups"][0] for each in sent} == {"system:nodes"}
    assert not [each for each in sent if "impersonatedUser" in each]
    assert not [each for each in sent if each["responseStatus"]["code"] == 401]
    for user in {each["user"]["username"] for each in sent}:
        assert_refusals_end(each for each in sent if each["user"]["username"] == user)
    assert len(created(audit, "system:bootstrap:")) == 3
    names = [each["metadata"]["name"] for each in world.items("secrets", "-n", "kube-system")]
    assert not [each for each in names if each.startswith("bootstrap-token-")], "it went, too"
    world.assert_nothing_left("own")

    with world.spawn("own", 3, "--identity=csr", "--until-ready") as run:
        run.ended_well_or_late()
    asked = created(world.audit()[before:], "system:bootstrap:")
    assert len(asked) == 3, "a restart asks for nothing"
    world.kubectl("delete", "configmap", "own")


def soon_renewed() -> int:
    """Return a seed with which the first two nodes renew at 70 to 71 % of a certificate's life."""
    return next(
        seed
        for seed in range(100_000)
        if all(Draws(seed).uniform(node, 0xCE27, 1) < 0.05 for node in (0, 1))
    )


@pytest.mark.slow
def test_certificates_are_approved_by_fleet_renewed_in_time_and_served(
    world: World, tmp_path: Path
) -> None:
    """Requests after the end of the first certificate show that the second one is in use."""
    profile = yaml.safe_load(show_profile("default"))
    profile["spec"]["kubeletConfiguration"]["serverTLSBootstrap"] = True
    profile["spec"]["kubeletConfiguration"]["nodeLeaseDurationSeconds"] = 8
    (tmp_path / "serving.yaml").write_text(yaml.safe_dump(profile))
    audit_log, certificates = tmp_path / "audit.jsonl", tmp_path / "certificates"
    done = world.fleet(
        *("spawn", "--identity=csr", "--nodes=2", "--approve-csrs", f"--seed={soon_renewed()}"),
        "--apiserver-flag=http2-max-streams-per-connection=5",
        *(f"--profile={tmp_path / 'serving.yaml'}", f"--cert-dir={certificates}"),
        *(f"--duration={LIFE_S + 3}s", f"--audit-log={audit_log}", "--output=json", NO_APPROVER),
        f"--controller-manager-flag=cluster-signing-duration={LIFE_S}s",
        XDG_STATE_HOME=str(tmp_path / "state"),
    )
    assert_done(done.returncode, done.stdout, done.stderr)
    audit = [json.loads(line) for line in audit_log.read_text().splitlines()]
    assert len(created(audit, "system:bootstrap:")) == 2
    own = created(audit, "system:node:fleet-")
    # A serving certificate lasts no longer, so each node may have renewed that too.
    assert len(own) >= 4
    sent = of_nodes(audit, "fleet")
    assert not [each for each in sent if each["responseStatus"]["code"] == 401]
    for node in ("fleet-00000", "fleet-00001"):
        times = [
            dt.datetime.fromisoformat(each["requestReceivedTimestamp"])
            for each in sent
            if each["user"]["username"] == f"system:node:{node}"
        ]
        assert (max(times) - min(times)).total_seconds() > LIFE_S
    approvals = [
        each for each in audit if each.get("objectRef", {}).get("subresource") == "approval"
    ]
    granted = [each for each in approvals if each["responseStatus"]["code"] == HTTPStatus.OK]
    ended = max(map(seconds, audit))
    last = [each for each in own if seconds(each) > ended - APPROVED_WITHIN_S]
    assert len(own) + 2 - len(last) <= len(granted) <= len(own) + 2
    assert all(each["userAgent"].startswith("fleet/") for each in approvals)
    # The end of the run may cut one off: the server logs that it could not answer.
    others = {each["responseStatus"]["code"] for each in approvals} - {HTTPStatus.OK}
    assert others <= {HTTPStatus.GATEWAY_TIMEOUT}
    for node in ("fleet-00000", "fleet-00001"):
        served = certificates / node / "kubelet-server-current.pem"
        extensions = x509.load_pem_x509_certificate(served.read_bytes()).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [node]
        assert len(names.get_values_for_type(x509.IPAddress)) == 1
    summary = json.loads(done.stdout)
    assert summary["nodes"]["ready"] == 2
    assert summary["watch"]["restarts"] >= 10, "the watches moved to new connections"
    # Five watches fill a connection here; what else a node sends goes on a second one, and all of
    # it moves with a new certificate. How many are open at the end depends on when that was.
    assert summary["connections"]["dials"] >= 2 * 2 * 2


def test_two_processes_bootstrap_with_one_token_and_their_kubelets_restart(
    world: World, tmp_path: Path
) -> None:
    """Agents are impersonated meanwhile: they go on, and nothing is open twice."""
    before, names = len(world.audit()), {f"two-000{each % 2}-0000{each // 2}" for each in range(4)}
    options = ("--identity=csr", f"--cert-dir={tmp_path}", "--processes=2", "--profile=kube-proxy")
    with world.spawn("two", 4, *options) as run:
        run.until("all 4 nodes are Ready")
        assert set(world.nodes("two")) == names

        def proxied() -> Counter[str]:
            found = {
                each["auditID"]: each["verb"]
                for each in world.audit()[before:]
                if each["userAgent"].startswith("kube-proxy/")
            }
            return Counter(found.values())

        begun = Counter({"watch": 4 * len(names), "create": len(names)})
        eventually(lambda: proxied() >= begun, "every node has its kube-proxy")
        assert len(created(world.audit()[before:], "system:bootstrap:")) == 4
        at, began = len(world.audit()), time.time()
        order(run, do="inject", fault={"type": "KubeletRestart"})

        def watched_anew() -> set[tuple[str, str]]:
            return {
                (
                    each["user"]["username"].removeprefix("system:node:"),
                    each["objectRef"]["resource"],
                )
                for each in of_nodes(world.audit()[at:], "two")
                if each["verb"] == "watch" and seconds(each) > began
            }

        wanted = {(name, kind) for name in names for kind in WATCHED}
        eventually(lambda: watched_anew() >= wanted, "every watch of every node is open again")
        asked = [each for each in world.audit()[at:] if seconds(each) > began]
        assert not created(asked, "system:"), "the certificates are kept"
        assert not [each for each in asked if each["userAgent"].startswith("kube-proxy/")]
        run.end_well_or_late()
    summary = run.summary()
    assert summary["watch"]["open"] == len(wanted) + 2, "and one of each process's own"
    [agent] = summary["agents"].values()
    assert (agent["running"], agent["watch"]["open"]) == (4, 16)
    assert not world.items("secrets", "-n", "kube-system"), "the token went with the run"
    world.assert_nothing_left("two")


def test_nodes_join_with_a_bootstrap_kubeconfig(world: World, tmp_path: Path) -> None:
    number, secret = "e2ekub", "0123456789abcdef"
    token: Json = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"bootstrap-token-{number}", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": number,
            "token-secret": secret,
            "usage-bootstrap-authentication": "true",
        },
    }
    world.apply(token)
    before, certificates = len(world.audit()), tmp_path / "certificates"
    kubeconfig = world.user(tmp_path / "bootstrap.kubeconfig", f"{number}.{secret}")
    options = ("--nodes=2", "--name-prefix=kub", "--identity=csr", "--until-ready")
    given = (f"--bootstrap-kubeconfig={kubeconfig}", f"--cert-dir={certificates}")
    done = world.fleet("spawn", *options, *given)
    assert_done(done.returncode, done.stdout, done.stderr)
    asked = created(world.audit()[before:], "system:")
    assert {each["user"]["username"] for each in asked} == {f"system:bootstrap:{number}"}
    assert len(asked) == 2
    assert sorted(each.name for each in certificates.glob("kub-*")) == ["kub-00000", "kub-00001"]
    world.kubectl("delete", "secret", f"bootstrap-token-{number}", "--namespace=kube-system")

    refused = world.fleet("spawn", *options, f"--bootstrap-kubeconfig={tmp_path / 'none'}")
    assert refused.returncode == 2, refused.stderr
    last = refused.stderr.splitlines()[-1]
    assert last.startswith("fleet: --bootstrap-kubeconfig"), refused.stderr
    world.assert_nothing_left("kub")
