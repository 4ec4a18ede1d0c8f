"""Both address families on a real control plane: its allocators and Services, our nodes."""

import ipaddress
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.e2e_world import CONFIRMED, FLEET, WAIT_MAX_S, Json, World, condition, eventually, workload
from e2e.leftovers import leftovers
from fleet.controlplane.standing import attach
from fleet.k8s.well_known import OPT_IN_LABEL
from fleet.profile.loader import show_profile

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SERVICES = "10.96.0.0/12,fd00:10:96::/112"
PODS = "10.128.0.0/9,fd00:10:128::/48"
POOLS = "198.18.0.0/15,fd00:c6:12::/108"
POOL = "example.com/pool"
UP = (
    f"--apiserver-flag=service-cluster-ip-range={SERVICES}",
    f"--controller-manager-flag=service-cluster-ip-range={SERVICES}",
    f"--controller-manager-flag=cluster-cidr={PODS}",
)


@pytest.fixture(scope="module")
def dual(environment: Path) -> Iterator[World]:
    """Bring a control plane of both families up as the documentation says."""
    directory, audit_log = environment / "dual", environment / "dual.jsonl"
    up = ("controlplane", "up", f"--dir={directory}", f"--audit-log={audit_log}", *UP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(environment / "dual-state"))
        subprocess.run((*FLEET, *up), check=True, timeout=2 * WAIT_MAX_S, stdout=subprocess.DEVNULL)
        info = attach()
        assert info is not None
        try:
            with leftovers.watched(World(environment, info, audit_log)) as world:
                yield world
        finally:
            down = (*FLEET, "controlplane", "down")
            subprocess.run(down, check=True, timeout=2 * WAIT_MAX_S, stdout=subprocess.DEVNULL)


def profile(world: World, pools: str) -> str:
    """Name a profile whose nodes have addresses of the pools."""
    document = yaml.safe_load(show_profile("default"))
    document["spec"]["addressPool"] = pools
    path = world.root / f"pools-{pools.count(',')}-{pools[0]}.yaml"
    path.write_text(yaml.safe_dump(document))
    return f"--profile={path}"


def family(ip: str) -> str:
    return f"IPv{ipaddress.ip_address(ip).version}"


def internal_ips(node: Json) -> list[str]:
    listed = node["status"]["addresses"]
    return [each["address"] for each in listed if each["type"] == "InternalIP"]


def ips(status: Json, of: str) -> list[str]:
    found = [each["ip"] for each in status[f"{of}IPs"]]
    assert status[f"{of}IP"] == found[0]
    return found


def assert_addresses(world: World, prefix: str, app: str, families: list[str]) -> None:
    """Each pod has an address of each range of its node, and knows those of its node."""
    nodes = world.nodes(prefix)
    for pod in world.pods(app):
        node, status = nodes[pod["spec"]["nodeName"]], pod["status"]
        assert ips(status, "host") == internal_ips(node)
        assert [family(ip) for ip in internal_ips(node)] == families
        if pod["spec"].get("hostNetwork"):
            assert ips(status, "pod") == internal_ips(node)
            continue
        ranges = [ipaddress.ip_network(each) for each in node["spec"]["podCIDRs"]]
        assert [each.version for each in ranges] == [4, 6]  # in the order of the cluster
        assert node["spec"]["podCIDR"] == str(ranges[0])
        assert [family(ip) for ip in ips(status, "pod")] == families
        found = {family(ip): ipaddress.ip_address(ip) for ip in ips(status, "pod")}
        assert all(found[f"IPv{each.version}"] in each for each in ranges)


def service(name: str, **spec: object) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}], **spec},
    }


def endpoints(world: World, name: str) -> dict[str, set[str]]:
    """Return the ready addresses of a Service's EndpointSlices, by family."""
    found: dict[str, set[str]] = {}
    for each in world.items("endpointslices", "-l", f"kubernetes.io/service-name={name}"):
        ready = [one for one in each.get("endpoints") or () if one["conditions"]["ready"]]
        listed = {address for one in ready for address in one["addresses"]}
        found.setdefault(each["addressType"], set()).update(listed)
    return found


def addresses_of(world: World, app: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {"IPv4": set(), "IPv6": set()}
    for pod in world.ready_pods(app):
        for ip in ips(pod["status"], "pod"):
            found[family(ip)].add(ip)
    return found


def run_app(world: World, name: str, **spec: object) -> None:
    """Run three pods and wait until each family of their Service leads to all of them."""
    world.apply(
        workload("Deployment", name, 3, **spec), service(name, ipFamilyPolicy="RequireDualStack")
    )
    world.kubectl("rollout", "status", f"deployment/{name}", "--timeout=120s")
    eventually(
        lambda: endpoints(world, name) == addresses_of(world, name), "slices of both families"
    )
    assert [len(each) for each in endpoints(world, name).values()] == [3, 3]


def delete_app(world: World, name: str) -> None:
    world.kubectl("delete", f"deployment/{name}", f"service/{name}", "--wait=false")
    eventually(lambda: not world.pods(name), "the pods are gone")


def test_a_service_of_both_families_leads_to_all_pods_also_after_a_restart(dual: World) -> None:
    name = "both"
    with dual.spawn(name, 2, profile(dual, POOLS)) as first:
        first.until_ready()
        run_app(dual, name)
        assert_addresses(dual, name, name, ["IPv4", "IPv6"])
        host = workload("Deployment", "both-host", 1, hostNetwork=True)
        dual.apply(host)
        dual.kubectl("rollout", "status", "deployment/both-host", "--timeout=120s")
        assert_addresses(dual, name, "both-host", ["IPv4", "IPv6"])
        [pod, *_] = dual.pods(name)
        dual.kubectl("exec", pod["metadata"]["name"], "--", "true")  # at the first InternalIP
        before = addresses_of(dual, name)
        first.process.send_signal(signal.SIGKILL)
        first.wait()
    over = json.dumps({"spec": {"leaseDurationSeconds": 1}})
    dual.kubectl("patch", f"lease/fleet-run-{name}", "--type=merge", "-p", over)
    eventually(lambda: "left behind" in dual.fleet("clean").stdout, "the run is over")
    with dual.spawn(name, 2, profile(dual, POOLS)) as second:
        second.until_ready()
        assert addresses_of(dual, name) == before
        assert_addresses(dual, name, name, ["IPv4", "IPv6"])
        dual.kubectl("scale", f"deployment/{name}", "--replicas=6")
        dual.kubectl("rollout", "status", f"deployment/{name}", "--timeout=120s")
        found = addresses_of(dual, name)
        assert [len(each) for each in found.values()] == [6, 6]
        assert all(before[each] < found[each] for each in before)
        dual.kubectl("delete", "deployment/both-host", "--wait=false")
        delete_app(dual, name)
        second.end_well_or_late()
    dual.assert_nothing_left(name)


def small(name: str) -> Json:
    """Return a Node of others, whose range of IPv6 has two addresses for pods."""
    cidrs = ["10.200.0.0/24", "fd00:10:128:c8::/126"]
    amounts = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {POOL: name, OPT_IN_LABEL: "true"}},
        "spec": {"podCIDR": cidrs[0], "podCIDRs": cidrs},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def bare(name: str, on: str) -> Json:
    container = {"name": "c", "image": "registry.k8s.io/pause:3.10.1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": on}},
        "spec": {
            "containers": [container],
            "nodeSelector": {POOL: on},
            "terminationGracePeriodSeconds": 1,
        },
    }


def test_a_pod_waits_for_the_family_whose_range_is_full(dual: World) -> None:
    name = "full"
    known = (f"--kubeconfig={dual.info.kubeconfig}", CONFIRMED)
    with dual.spawn(name, 1, f"--manage={POOL}={name}", *known) as run:
        run.until_ready()
        dual.kubectl("create", "-f", "-", stdin=yaml.safe_dump(small(name)))
        dual.apply(*(bare(f"{name}-{index}", name) for index in range(3)))
        eventually(lambda: len(dual.ready_pods(name)) == 2, "two pods have both addresses")
        end = "set: fd00:10:128:c8::1-fd00:10:128:c8::3"
        full = f"range 1: no IP addresses available in range {end}"
        told = "--field-selector=reason=FailedCreatePodSandBox"
        eventually(
            lambda: any(each["message"].endswith(full) for each in dual.items("events", told)),
            "the third one is told why not",
        )
        [waiting] = [each for each in dual.pods(name) if condition(each, "Ready") != "True"]
        assert "podIPs" not in waiting["status"]
        gone = dual.ready_pods(name)[0]
        dual.kubectl("delete", "pod", gone["metadata"]["name"], "--wait=false")
        eventually(
            lambda: (
                {each["metadata"]["uid"] for each in dual.ready_pods(name)}
                == {each["metadata"]["uid"] for each in dual.pods(name)}
            ),
            "the third one runs",
        )
        assert len(dual.pods(name)) == 2
        assert addresses_of(dual, name)["IPv6"] == {"fd00:10:128:c8::2", "fd00:10:128:c8::3"}
        dual.kubectl("delete", "pods", "-l", f"app={name}", "--wait=false")
        eventually(lambda: not dual.pods(name), "the pods are gone")
        dual.kubectl("delete", "node", name)
        run.end_well_or_late()


@pytest.mark.slow
def test_light_nodes_register_with_ranges_of_both_families(dual: World) -> None:
    name = "preset"
    with dual.spawn(name, 2, "--fidelity=light", profile(dual, POOLS)) as first:
        first.until_ready()
        four, six = map(ipaddress.ip_network, PODS.split(","))
        last = [list(four.subnets(new_prefix=24))[-2:], list(six.subnets(new_prefix=64))[-2:]]
        given = sorted(tuple(each["spec"]["podCIDRs"]) for each in dual.nodes(name).values())
        assert given == sorted((str(a), str(b)) for a, b in zip(*last, strict=True))
        run_app(dual, name)
        assert_addresses(dual, name, name, ["IPv4", "IPv6"])
        with dual.spawn("later", 2, dual.quick()) as second:
            second.until_ready()
            eventually(
                lambda: all(each["spec"].get("podCIDRs") for each in dual.nodes("later").values()),
                "the controller has given ranges",
            )
            others = [each["spec"]["podCIDRs"] for each in dual.nodes("later").values()]
            assert all(len(each) == 2 for each in others)
            assert len({cidr for each in (*given, *others) for cidr in each}) == 8
            second.end_well_or_late()
        delete_app(dual, name)
        first.end_well_or_late()
    dual.assert_nothing_left(name)
