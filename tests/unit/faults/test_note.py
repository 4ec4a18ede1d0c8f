"""The annotation `fleet.emulator/fault`: what it says, and what is told of a wrong one."""

import pytest

from fleet.clock import NS_PER_S
from fleet.errors import UsageError
from fleet.faults.fault import NOTE_CHARACTERS_MAX, FaultType, Heartbeat, PartitionMode, read_note


def test_a_note_names_faults_of_its_node() -> None:
    [fault] = read_note("KubeletDown", "n-1")
    assert (fault.spec.type, fault.spec.nodes) == (FaultType.KUBELET_DOWN, ("n-1",))
    assert fault.for_ns is None
    first, second, third = read_note(
        " Partition:8m mode=Reset every=20s ;HeartbeatLoss heartbeats=Lease,Status; "
        'SandboxFailure:90s message="no route"; ',
        "n-1",
    )
    assert first.for_ns == 480 * NS_PER_S
    assert (first.spec.mode, first.spec.every_ns) == (PartitionMode.RESET, 20 * NS_PER_S)
    assert second.spec.heartbeats == (Heartbeat.LEASE, Heartbeat.STATUS)
    assert third.spec.message == "no route"
    [devices] = read_note("DeviceFailure count=2", "n-1")
    assert devices.spec.count == 2
    assert read_note("", "n-1") == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Earthquake:8m", "'Earthquake' is no fault; these are: HeartbeatLoss, "),
        ("ComponentDown component=etcd", "ComponentDown hits no node, but the control plane"),
        ("Partition:soon", "soon"),
        ("Partition:0s", "Partition:0s: '0s' must be above 0s"),
        ("Partition:-5s", "'-5s' is negative"),
        ("KubeletRestart:8m", "KubeletRestart:8m: KubeletRestart is over at once"),
        ("Partition 8m", "'8m' is not KEY=VALUE with one of: heartbeats, by, mode"),
        ("Partition zone=a", "'zone=a' is not KEY=VALUE"),
        ("Partition by=5s", "Partition takes no by; it takes mode"),
        ("Partition mode=Odd", "mode: 'Odd'"),
        ("ClockSkew", "ClockSkew needs by, for example by: 25s"),
        ('SandboxFailure message="x', "No closing quotation"),
        ("Partition;" * 20, "names over 16 faults"),
        ("x" * (NOTE_CHARACTERS_MAX + 1), "is over 4096 characters"),
    ],
)
def test_what_a_note_is_not_is_told_in_one_line(text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_note(text, "n-1")
    assert str(caught.value).startswith("fleet.emulator/fault: ")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
