"""What Guaranteed pods are given, and refused, by the static policies of CPUs and memory."""

from typing import Any

import pytest
from world.admission_world import container, look, make_pod, node
from world.pod_world import model_of

from fleet.k8s.pods import Pod
from fleet.kubelet.devices.container_manager import static_refusal
from fleet.profile.node_model import NodeModel

UNEXPECTED = "UnexpectedAdmissionError"
STATIC_MEMORY = {"numaNode": 0, "limits": {"memory": "1124Mi"}}


def machine(**kubelet: object) -> NodeModel:
    """Return nodes of eight CPUs, of which two are kept, and of 9 GiB, of which 8 are free."""
    configuration = {
        "cpuManagerPolicy": "static",
        "kubeReserved": {"cpu": "500m", "memory": "1Gi"},
        "systemReserved": {"cpu": "600m"},
        **kubelet,
    }
    capacity = {"cpu": "8", "memory": "9316Mi", "hugepages-2Mi": "0", "hugepages-1Gi": "0"}
    return model_of(template={"status": {"capacity": capacity}}, kubeletConfiguration=configuration)


def part(name: str, cpu: str = "", memory: str = "1Gi", **fields: object) -> dict[str, Any]:
    amounts = {"memory": memory, **({"cpu": cpu} if cpu else {})}
    return container(name, resources={"requests": amounts, "limits": amounts}, **fields)


def pinned(name: str, *containers: dict[str, Any], **spec: Any) -> Pod:
    return make_pod(name, *containers, qos="Guaranteed", **spec)


def cpus(name: str, count: str) -> Pod:
    return pinned(name, part("c", count))


def static_error(pod: Pod, others: tuple[Pod, ...], model: NodeModel) -> str:
    """Return why a pod is refused, without the words around it."""
    found = static_refusal(pod, others, model)
    if found is None:
        return ""
    text = found.message.removeprefix("Allocate failed due to ")
    return text.removesuffix(", which is unexpected")


def burstable(name: str, count: str) -> Pod:
    return make_pod(name, container("c", resources={"requests": {"cpu": count, "memory": "4Gi"}}))


def too_few(requested: int, available: int) -> str:
    return (
        "not enough cpus available to satisfy request: "
        f"requested={requested}, available={available}"
    )


@pytest.mark.parametrize(
    ("pod", "others", "error"),
    [
        (cpus("p", "6"), (), ""),
        (cpus("p", "7"), (), too_few(7, 6)),
        (cpus("p", "7500m"), (), ""),  # of the shared pool
        (burstable("p", "7"), (), ""),
        (cpus("p", "3"), (cpus("a", "2"), cpus("b", "1")), ""),
        (cpus("p", "3"), (cpus("a", "2"), cpus("b", "2")), too_few(3, 2)),
        (cpus("p", "3"), (cpus("a", "3500m"), burstable("b", "4")), ""),
        (pinned("p", part("a", "4"), part("b", "3")), (), too_few(3, 2)),
        (pinned("p", part("a", "4"), initContainers=[part("i", "6")]), (), ""),
        (pinned("p", part("a", "4"), initContainers=[part("i", "7")]), (), too_few(7, 6)),
        (
            pinned("p", part("a", "4"), initContainers=[part("i", "3", restartPolicy="Always")]),
            (),
            too_few(4, 3),
        ),
        (
            cpus("p", "3"),
            (pinned("a", part("a", "1"), initContainers=[part("i", "2"), part("j", "3")]),),
            "",
        ),
        (
            cpus("p", "4"),
            (pinned("a", part("a", "1"), initContainers=[part("i", "2"), part("j", "3")]),),
            too_few(4, 3),
        ),
        (pinned("p", part("c", "8"), resources={"limits": {"cpu": "8"}}), (), ""),  # pod level
    ],
)
def test_whole_cpus(pod: Pod, others: tuple[Pod, ...], error: str) -> None:
    assert static_error(pod, others, machine()) == error
    assert static_error(pod, others, machine(cpuManagerPolicy="none")) == ""
    aligning = machine(topologyManagerPolicy="single-numa-node")
    strict = "Resources cannot be allocated with Topology locality" if error else ""
    assert static_error(pod, others, aligning) == strict


def test_reserved_cpus_by_name_replace_the_amounts() -> None:
    model = machine(reservedSystemCPUs="0-1,7")
    assert model.allocatable["cpu"] == "5"
    assert static_error(cpus("p", "5"), (), model) == ""
    assert static_error(cpus("p", "6"), (), model) == too_few(6, 5)


NO_MEMORY = (
    "[memorymanager] failed to get the default NUMA affinity, "
    "no NUMA nodes with enough memory is available"
)


def memory(name: str, *amounts: str, **spec: object) -> Pod:
    parts = [part(f"c{at}", "100m", amount) for at, amount in enumerate(amounts)]
    return pinned(name, *parts, **spec)


@pytest.mark.parametrize(
    ("pod", "others", "error"),
    [
        (memory("p", "8Gi"), (), ""),
        (memory("p", "4Gi", "5Gi"), (), NO_MEMORY),
        (memory("p", "4Gi"), (memory("a", "4Gi"), burstable("b", "1")), ""),
        (memory("p", "4Gi"), (memory("a", "5Gi"),), NO_MEMORY),
        (memory("p", "5Gi", initContainers=[part("i", "100m", "8Gi")]), (), ""),
    ],
)
def test_memory(pod: Pod, others: tuple[Pod, ...], error: str) -> None:
    both = {"cpuManagerPolicy": "none", "memoryManagerPolicy": "Static"}
    assert static_error(pod, others, machine(**both, reservedMemory=[STATIC_MEMORY])) == error
    assert static_error(pod, others, machine()) == ""


def test_a_refusal_comes_before_that_of_the_nodes_resources() -> None:
    found = look(cpus("p", "9"), inputs=node(machine())).rejection
    assert found == (UNEXPECTED, f"Allocate failed due to {too_few(9, 6)}, which is unexpected")
    found = look(cpus("p", "9"), inputs=node(machine(cpuManagerPolicy="none"))).rejection
    assert found is not None
    assert found.reason == "OutOfcpu"
    strict = machine(topologyManagerPolicy="restricted")
    found = look(cpus("p", "9"), inputs=node(strict)).rejection
    assert found is not None
    assert found.reason == "TopologyAffinityError"


@pytest.mark.parametrize(
    ("pod", "others", "error"),
    [
        (cpus("p", "4"), (), ""),
        (cpus("p", "3"), (), "requested 3 cpus not multiple cpus per core = 2"),
        (cpus("p", "3500m"), (), ""),
        (
            cpus("p", "4"),
            (cpus("a", "4"),),
            (
                "not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, "
                "CPUs per core = 2"
            ),
        ),
    ],
)
def test_whole_cores(pod: Pod, others: tuple[Pod, ...], error: str) -> None:
    model = machine(cpuManagerPolicyOptions={"full-pcpus-only": "true"})
    found = static_refusal(pod, others, model)
    expected = ("SMTAlignmentError", f"SMT Alignment Error: {error}") if error else None
    assert found == expected
    off = machine(cpuManagerPolicyOptions={"full-pcpus-only": "false"})
    assert "SMT" not in static_error(pod, others, off)


@pytest.mark.parametrize(("kept", "left"), [("0,4", 6), ("0-1", 4), ("0", 6), ("3,7,0", 4)])
def test_a_core_of_a_kept_cpu_is_no_pods(kept: str, left: int) -> None:
    options = {"full-pcpus-only": "1"}
    model = machine(reservedSystemCPUs=kept, cpuManagerPolicyOptions=options)
    assert static_error(cpus("p", str(left)), (), model) == ""
    assert static_error(cpus("p", str(left + 2)), (), model) == (
        f"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {left}, "
        f"requested CPUs = {left + 2}, CPUs per core = 2"
    )
