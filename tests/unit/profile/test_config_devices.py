"""Devices in node profiles: what is read and what is made of it."""

import yaml
from world.profiles import profile

from fleet.clock import NS_PER_S
from fleet.profile.machine import Attribute, HealthChange


def test_a_plugins_resource_is_not_on_the_node_that_registers() -> None:
    template = {"status": {"capacity": {"x.io/gpu": "4", "y.io/nic": "2"}, "allocatable": {}}}
    template["status"]["allocatable"] = {"x.io/gpu": "3"}
    model = profile(template=template, devices=[{"resource": "x.io/gpu", "count": 4}])
    assert "x.io/gpu" not in model.capacity
    assert "x.io/gpu" not in model.allocatable
    assert model.capacity["y.io/nic"] == model.allocatable["y.io/nic"] == "2"


def test_what_happens_to_devices_is_in_order_of_time() -> None:
    text = """
    resource: x.io/gpu
    ids: [a, b]
    health:
    - {after: 20s, state: Healthy}
    - {after: 10s, devices: [1]}
    pluginOutages: [{after: 1m, duration: 5s}, {after: 2m}]
    """
    [device] = profile(devices=[yaml.safe_load(text)]).devices
    assert device.total == 2
    assert device.health == (
        HealthChange.model_validate({"after": "10s", "devices": [1]}),
        HealthChange.model_validate({"after": "20s", "state": "Healthy"}),
    )
    first, second = device.plugin_outages
    assert (first.after_ns, first.duration_ns) == (60 * NS_PER_S, 5 * NS_PER_S)
    assert (second.after_ns, second.duration_ns) == (120 * NS_PER_S, 0)
    assert [device.device_id("n", index) for index in range(2)] == ["a", "b"]
    assert device.index_of("n", "b") == 1
    assert device.index_of("n", "c") == -1


def test_ids_are_a_nodes_own_and_stay() -> None:
    [device] = profile(devices=[{"resource": "x.io/gpu", "count": 2, "idPrefix": "GPU-"}]).devices
    ids = {device.device_id(node, index) for node in ("n-0", "n-1") for index in range(2)}
    assert len(ids) == 4
    assert device.device_id("n-0", 0) == device.device_id("n-0", 0)
    [plain] = profile(devices=[{"resource": "x.io/gpu", "count": 2}]).devices
    assert plain.device_id("n-0", 1) == "gpu-1"


def test_attributes_have_the_types_of_their_values() -> None:
    attributes = {"model": "H100", "cores": 5, "ecc": True}
    capacity = {"memory": "81920Mi"}
    drivers = [{"driver": "x.io", "attributes": attributes, "capacity": capacity}]
    [driver] = profile(dynamicResources=drivers).dra_drivers
    assert driver.typed_attributes == (
        Attribute("cores", "int", 5),
        Attribute("ecc", "bool", value=True),
        Attribute("model", "string", "H100"),
    )
    assert str(driver.capacity["memory"]) == "80Gi"
