"""What nodes are like that others make, by what their Nodes declare."""

from fleet.profile.loader import load_mix
from fleet.profile.node_model import NATIVE, Resources, managed_model
from fleet.profile.option_types import ProfileChoice
from fleet.quantity import parse_quantity

DEFAULT = load_mix().model_of(0)
GPU = "nvidia.com/gpu"


def test_what_a_node_declares_wins_and_the_profile_fills_in() -> None:
    found = Resources.of(
        {
            "capacity": {"cpu": "3", "memory": "5Gi", "pods": "17", GPU: "2"},
            "allocatable": {"cpu": "2900m", "memory": "4Gi", "pods": "16", GPU: "1"},
        }
    )
    model = managed_model(DEFAULT, found)
    disk = {"ephemeral-storage": DEFAULT.capacity["ephemeral-storage"]}
    assert model.capacity == {"cpu": "3", "memory": "5Gi", "pods": "17", GPU: "2", **disk}
    free = {"ephemeral-storage": DEFAULT.allocatable["ephemeral-storage"]}
    assert model.allocatable == {"cpu": "2900m", "memory": "4Gi", "pods": "16", GPU: "1", **free}
    assert model.pods_max == 17
    assert model.pods_memory_bytes == DEFAULT.kubelet.pods_memory(parse_quantity("5Gi"))
    assert list(model.capacity) == sorted(model.capacity)


def test_a_node_that_says_nothing_is_as_the_profile() -> None:
    model = managed_model(DEFAULT, Resources.of({}))
    native = {"cpu", "memory", "pods", "ephemeral-storage"}
    assert model.capacity == {name: DEFAULT.capacity[name] for name in native}
    assert model.allocatable == {name: DEFAULT.allocatable[name] for name in native}


def test_without_allocatable_all_of_the_capacity_is() -> None:
    model = managed_model(DEFAULT, Resources.of({"capacity": {"cpu": "3", GPU: "2"}}))
    assert (model.allocatable["cpu"], model.allocatable[GPU]) == ("3", "2")


def test_device_plugins_of_the_profile_say_nothing() -> None:
    gpu = load_mix((ProfileChoice("gpu"),)).model_of(0)
    assert gpu.devices
    model = managed_model(gpu, Resources())
    assert model.devices == ()
    assert set(model.capacity) == set(NATIVE)
