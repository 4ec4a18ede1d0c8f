import functools
from dataclasses import replace

from world.node_world import NODE, facts, turn

from fleet.clock import NS_PER_S, Draws
from fleet.k8s.effects import Outbox
from fleet.kubelet.containers.image_gc_manager import (
    GC_PERIOD_NS,
    format_size,
    garbage_collect,
    image_disk,
    on_kubelet_start,
)
from fleet.kubelet.environment import Environment
from fleet.kubelet.events import Reason
from fleet.profile.kubelet_configuration import KubeletConfiguration
from fleet.profile.loader import load_mix
from fleet.profile.node_model import NodeImage, NodeModel

GB = 10**9
PAUSE = NodeImage(("registry.k8s.io/pause:3.10.1",), GB)


@functools.cache
def model() -> NodeModel:
    return load_mix().model_of(0)


class Disk:
    """The images of one node on a disk of 100 GB, of which `other` GB are not images."""

    def __init__(self, other: float = 0, **policy: int) -> None:
        changed = replace(
            model(),
            images_preloaded=(PAUSE,),
            image_disk_bytes=100 * GB,
            kubelet=KubeletConfiguration().model_copy(update=policy),
        )
        self.env = Environment(changed, Draws(3))
        self.other = int(other * GB)
        self.facts = facts()
        self.out: Outbox = []
        self.now_ns = 10_000 * NS_PER_S

    def add(self, name: str, gigabytes: int) -> None:
        self.env.images.add(NODE, name, gigabytes * GB, self.now_ns)

    def release(self, *names: str) -> None:
        self.env.images.release(NODE, names, self.now_ns)

    def collect(self, *in_use: str) -> tuple[list[str], list[tuple[Reason, str]]]:
        """Look at the disk; return the images that are left, and the events."""
        used = self.env.images.used_bytes(NODE) + self.other
        at = turn(self.env, self.now_ns, known=self.facts)
        _, events = garbage_collect(in_use, at, used)
        return self.left(), list(events)

    def left(self) -> list[str]:
        store = self.env.images
        return [store.image(each).names[-1] for each in store.numbers(NODE)][1:]

    def after(self, seconds: float) -> None:
        self.now_ns += int(seconds * NS_PER_S)

    def next_look(self) -> None:
        self.now_ns += GC_PERIOD_NS


FAILED = (
    "Insufficient free disk space on the node's image filesystem (90% of 93.1 GiB used). Failed "
    "to free sufficient space by deleting unused images (freed 9000000000 bytes). Investigate "
    "disk usage, as it could be used by active images, logs, volumes, or other data."
)


def test_below_85_percent_nothing_is_deleted() -> None:
    disk = Disk(other=33)
    disk.add("a:1", 50)
    disk.after(3600)
    assert disk.collect() == (["a:1"], [])
    disk.other = 34 * GB  # 85 %
    assert disk.collect() == ([], [])


def test_unused_images_go_until_80_percent_are_left_longest_unused_first() -> None:
    disk = Disk(other=60)
    disk.add("old:1", 3)
    disk.add("used:1", 3)
    disk.add("never:1", 3)
    disk.after(1000)
    disk.add("young:1", 20)
    disk.release("old:1")
    disk.after(1000)
    disk.release("used:1")
    disk.after(1000)
    # 90 % are used, 10 GB have to go: the pinned image stays whatever happens.
    left, events = disk.collect("young:1")
    assert left == ["young:1"]
    assert events == [(Reason.FREE_DISK_SPACE_FAILED, FAILED)]
    disk = Disk(other=70)
    disk.add("first:1", 9)
    disk.add("second:1", 9)
    disk.after(1000)
    disk.release("first:1")
    disk.after(1000)
    disk.release("second:1")
    disk.after(1000)
    assert disk.collect() == (["second:1"], [])


def test_an_image_that_was_just_pulled_stays_for_two_minutes() -> None:
    disk = Disk(other=80)
    disk.add("new:1", 10)
    left, events = disk.collect()
    assert left == ["new:1"]
    assert [reason for reason, _ in events] == [Reason.FREE_DISK_SPACE_FAILED]
    disk.next_look()
    assert disk.collect()[0] == []


def test_the_second_failure_in_a_row_is_an_event_of_its_own() -> None:
    disk = Disk(other=95)
    for looks in range(3):
        _, events = disk.collect()
        reasons = [reason for reason, _ in events]
        assert reasons[0] is Reason.FREE_DISK_SPACE_FAILED
        assert reasons[1:] == ([Reason.IMAGE_GC_FAILED] if looks else [])
        if looks:
            assert events[0][1] == events[1][1]
        disk.next_look()
    disk.other = 0
    assert disk.collect()[1] == []
    disk.next_look()
    disk.other = 95 * GB
    assert len(disk.collect()[1]) == 1


def test_no_disk_at_all_is_told() -> None:
    disk = Disk()
    disk.env.model = replace(disk.env.model, image_disk_bytes=0)
    disk.add("a:1", 1)
    text = "invalid capacity 0 on image filesystem"
    assert disk.collect()[1] == [(Reason.INVALID_DISK_CAPACITY, text)]


def test_images_may_have_a_greatest_age() -> None:
    disk = Disk(image_maximum_gc_age_ns=3600 * NS_PER_S)
    on_kubelet_start(turn(disk.env, disk.now_ns, disk.out))  # before it has pulled any
    assert len(disk.out) == 1
    disk.add("a:1", 1)
    disk.add("b:1", 1)
    disk.after(3000)
    disk.release("b:1")
    disk.after(1000)
    disk.facts.started_ns = disk.now_ns - 3600 * NS_PER_S
    assert disk.collect() == (["a:1", "b:1"], [])  # the kubelet has not seen them for so long
    disk.facts.started_ns -= 1
    assert disk.collect() == (["b:1"], [])
    assert disk.collect("b:1") == (["b:1"], [])


def test_the_disk_is_images_and_what_the_machine_takes() -> None:
    disk = Disk()
    disk.add("a:1", 30)
    capacity, available = image_disk(disk.env, NODE)
    assert capacity == 100 * GB
    assert capacity - available == 31 * GB + (4 << 30)
    assert image_disk(disk.env, NODE, 200 * GB) == (100 * GB, 0)


def test_sizes_are_printed_as_upstream_prints_them() -> None:
    sizes = {900: "900 B", 1536: "1.5 KiB", 5 << 20: "5.0 MiB", 3 << 30: "3.0 GiB"}
    assert {size: format_size(size) for size in sizes} == sizes
    assert format_size(2 << 40) == "2.0 TiB"
