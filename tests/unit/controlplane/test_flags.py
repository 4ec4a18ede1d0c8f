"""The flags that decide whether results can be trusted, and how a user's replace them."""

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fleet.controlplane import flags
from fleet.controlplane.directory import Layout
from fleet.controlplane.flags import component_flags, fixed_ports, merge_flags
from fleet.controlplane.options import (
    APISERVER,
    CONTROLLER_MANAGER,
    ETCD,
    SCHEDULER,
    ControlPlaneOptions,
)
from fleet.controlplane.pki import write_certificates
from fleet.errors import UsageError
from fleet.run.bring_up import NODE_MASKS

PORTS = {ETCD: 1, APISERVER: 3, SCHEDULER: 4, CONTROLLER_MANAGER: 5}


def build(
    tmp_path: Path, *, with_controllers: bool = True, **options: object
) -> dict[str, list[str]]:
    layout = Layout(tmp_path)
    certificates = write_certificates(layout.pki, flags.SERVICE_IP)
    return component_flags(
        ControlPlaneOptions(**options),  # type: ignore[arg-type]
        layout,
        PORTS,
        certificates,
        with_controllers=with_controllers,
    )


def test_no_component_is_an_administrator(tmp_path: Path) -> None:
    built = build(tmp_path)
    for component in (SCHEDULER, CONTROLLER_MANAGER):
        for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"):
            assert f"--{flag}={tmp_path}/{component}.kubeconfig" in built[component]
    assert "--use-service-account-credentials=true" in built[CONTROLLER_MANAGER]


def test_the_apiserver_has_what_real_clusters_have(tmp_path: Path) -> None:
    built = build(tmp_path)[APISERVER]
    for flag in (
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--enable-bootstrap-token-auth=true",
        "--kubelet-preferred-address-types=InternalIP,Hostname",
        "--requestheader-allowed-names=front-proxy-client",
    ):
        assert flag in built
    assert not [flag for flag in built if flag.startswith(("--audit", "--max-req", "--enable-pri"))]


def test_everything_listens_on_loopback_or_on_sockets_of_the_directory(tmp_path: Path) -> None:
    built = build(tmp_path)
    for component in (APISERVER, SCHEDULER, CONTROLLER_MANAGER):
        assert "--bind-address=127.0.0.1" in built[component]
    listening = {flag for flag in built[ETCD] if flag.startswith("--listen-")}
    assert listening == {
        f"--listen-client-urls=unix://{tmp_path}/etcd.sock",  # it asks for no credentials
        f"--listen-peer-urls=unix://{tmp_path}/peer.sock",
        "--listen-metrics-urls=http://127.0.0.1:1",
    }
    assert f"--etcd-servers=unix://{tmp_path}/etcd.sock" in built[APISERVER]


def test_fsync_is_a_choice(tmp_path: Path) -> None:
    assert "--unsafe-no-fsync=true" in build(tmp_path)[ETCD]
    assert "--unsafe-no-fsync=true" not in build(tmp_path, fsync=True)[ETCD]


def test_an_audit_log_comes_with_its_policy(tmp_path: Path) -> None:
    built = build(tmp_path, audit_log=tmp_path / "audit.jsonl")[APISERVER]
    assert f"--audit-log-path={tmp_path}/audit.jsonl" in built
    assert f"--audit-policy-file={tmp_path}/audit-policy.yaml" in built


def test_without_a_controller_manager_pods_need_no_service_account(tmp_path: Path) -> None:
    flag = "--disable-admission-plugins=ServiceAccount"
    assert flag in build(tmp_path, with_controllers=False)[APISERVER]
    assert flag not in build(tmp_path)[APISERVER]


def test_pod_networks_suffice_for_20000_nodes() -> None:
    pods = ipaddress.ip_network(flags.POD_CIDR)
    assert 2 ** (NODE_MASKS[4] - pods.prefixlen) >= 20_000
    assert NODE_MASKS[4] - pods.prefixlen <= 16  # the allocator's limit
    services = ipaddress.ip_network(flags.SERVICE_CIDR)
    assert not services.overlaps(pods)
    assert ipaddress.ip_address(flags.SERVICE_IP) == services.network_address + 1


def test_a_users_flag_replaces_ours_and_may_repeat() -> None:
    own = {"v": "2", "name": "fleet"}
    extra = ["--v=4", "feature-gates=A=true", "feature-gates=B=true", "profiling"]
    assert merge_flags(own, extra) == [
        "--name=fleet",
        "--v=4",
        "--feature-gates=A=true",
        "--feature-gates=B=true",
        "--profiling=true",
    ]


def test_a_users_secure_port_is_used() -> None:
    extra: Mapping[str, Sequence[str]] = {APISERVER: ["--secure-port=6443"], ETCD: ["name=a"]}
    assert fixed_ports(extra) == {APISERVER: 6443}
    with pytest.raises(UsageError, match="is no port"):
        fixed_ports({SCHEDULER: ["secure-port=many"]})
