import pytest
from world.profiles import behavior, profile

from fleet.clock import NS_PER_S
from fleet.profile.distribution import constant
from fleet.profile.loader import load_mix
from fleet.profile.pod_behavior import (
    DEFAULT_DRIVER,
    CSIDriver,
    RpcError,
    VolumeBehavior,
    volume_behavior,
)


def test_drivers_of_a_profile() -> None:
    driver = {"name": "a.example.com", "allocatableCount": 3, "topologyKeys": ["z", "b"]}
    model = profile(csiDrivers=[{**driver, "attachDelay": "2s"}])
    assert model.csi_drivers == (
        CSIDriver(
            name="a.example.com",
            allocatable_count=3,
            topology_keys=("b", "z"),
            attach_delay=constant(2 * NS_PER_S),
        ),
    )
    assert model.csi_driver_names == ("a.example.com",)


def test_simulate_csi_gives_every_node_a_driver() -> None:
    assert load_mix().model_of(0).csi_drivers == ()
    assert load_mix(simulate_csi=True).model_of(0).csi_drivers == (CSIDriver(name=DEFAULT_DRIVER),)


def test_the_first_entry_that_fits_a_volume_decides_and_annotations_override() -> None:
    volumes = "[{name: 'data-?', mountDelay: 3s}, {mountError: broken}]"
    declared = behavior(f"{{volumes: {volumes}}}").volumes
    slow = VolumeBehavior(name="data-?", mount_delay=constant(3 * NS_PER_S))
    broken = VolumeBehavior(mount_error="broken")
    assert volume_behavior(declared, "data-1", ()) == slow
    assert volume_behavior(declared, "logs", ()) == broken
    assert volume_behavior((), "logs", ()) == VolumeBehavior()
    notes = (("fleet.emulator/mount-delay", "5s"), ("fleet.emulator/mount-error", ""))
    assert volume_behavior(declared, "logs", notes) == VolumeBehavior(
        mount_delay=constant(5 * NS_PER_S)
    )
    bad = (("fleet.emulator/mount-delay", "soon"), ("fleet.emulator/unmount-fails", "yes"))
    assert volume_behavior(declared, "logs", bad) == broken
    stuck = (("fleet.emulator/unmount-fails", "true"),)
    assert volume_behavior((), "logs", stuck) == VolumeBehavior(unmount_fails=True)
    assert volume_behavior((VolumeBehavior(unmount_fails=True),), "logs", ()).unmount_fails
    healed = (("fleet.emulator/unmount-fails", "false"),)
    assert not volume_behavior((VolumeBehavior(unmount_fails=True),), "x", healed).unmount_fails


def test_how_many_volumes_a_node_takes_may_change_over_time() -> None:
    fixed = CSIDriver(name="a", allocatable_count=3)
    assert (fixed.count_at(0), fixed.count_at(3_600 * NS_PER_S)) == (3, 3)
    curve = {"curve": "Step", "from": 26, "to": 24, "after": "10m"}
    [found] = profile(csiDrivers=[{"name": "a", "allocatableOverTime": curve}]).csi_drivers
    assert found.count_at(599 * NS_PER_S) == 26
    assert found.count_at(600 * NS_PER_S) == 24


@pytest.mark.parametrize(
    ("declared", "code", "text"),
    [
        ("the disk is full", "Internal", "the disk is full"),
        ("OutOfRange: the disk is full", "OutOfRange", "the disk is full"),
        ("error: the disk is full", "Internal", "error: the disk is full"),
        ("OutOfRange", "Internal", "OutOfRange"),
    ],
)
def test_an_error_may_name_its_code(declared: str, code: str, text: str) -> None:
    found = RpcError.of(declared)
    assert found == (code, text)
    assert str(found) == f"rpc error: code = {code} desc = {text}"


def test_a_volume_may_refuse_to_grow() -> None:
    notes = (("fleet.emulator/expand-error", "no"),)
    assert volume_behavior((), "data", notes) == VolumeBehavior(expand_error="no")
