"""What containers use, as CRI reports it. Source: api.proto; fleet.runtime.container_usage."""

from collections.abc import Iterable

from fleet.clock import NS_PER_S
from fleet.runtime.container_usage import container_usage
from fleet.runtime.containers import RunState
from oracle.cri.machine import Machine
from oracle.cri.messages import message_class
from oracle.cri.records import CriContainer, Message, PodSandbox

NANO_PER_MILLI = 1_000_000


def container_stats(machine: Machine, found: CriContainer) -> Message:
    """Return what a container uses now."""
    now_ns = machine.now_ns()
    wall_ns = machine.wall_ns(now_ns)
    usage = container_usage(found.spec.resources_json, found.declared.usage)
    age = wall_ns - found.started_wall_ns // NS_PER_S * NS_PER_S
    stats = message_class("ContainerStats")()
    stats.attributes.id = found.id
    stats.attributes.metadata.CopyFrom(found.config.metadata)
    stats.attributes.labels.update(found.config.labels)
    stats.attributes.annotations.update(found.config.annotations)
    cpu_milli = usage.cpu_milli.at(age)
    stats.cpu.timestamp = wall_ns
    stats.cpu.usage_nano_cores.value = cpu_milli * NANO_PER_MILLI
    stats.cpu.usage_core_nano_seconds.value = cpu_milli * max(age, 0) // 1000
    memory = usage.memory.at(age)
    stats.memory.timestamp = wall_ns
    for each in (stats.memory.working_set_bytes, stats.memory.usage_bytes, stats.memory.rss_bytes):
        each.value = memory
    stats.writable_layer.timestamp = wall_ns
    stats.writable_layer.used_bytes.value = usage.ephemeral.at(age)
    stats.writable_layer.inodes_used.value = usage.inodes.at(age)
    return stats


def pod_sandbox_stats(
    machine: Machine, found: PodSandbox, containers: Iterable[CriContainer]
) -> Message:
    """Return what a pod uses now: the sum of its containers that run."""
    stats = message_class("PodSandboxStats")()
    stats.attributes.id = found.id
    stats.attributes.metadata.CopyFrom(found.config.metadata)
    stats.attributes.labels.update(found.config.labels)
    stats.attributes.annotations.update(found.config.annotations)
    running = [each for each in containers if each.state is RunState.RUNNING]
    parts = [container_stats(machine, each) for each in running]
    stats.linux.containers.extend(parts)
    wall_ns = machine.wall_ns(machine.now_ns())
    for each in (stats.linux.cpu, stats.linux.memory, stats.linux.process):
        each.timestamp = wall_ns
    stats.linux.cpu.usage_nano_cores.value = sum(one.cpu.usage_nano_cores.value for one in parts)
    total = sum(one.memory.working_set_bytes.value for one in parts)
    stats.linux.memory.working_set_bytes.value = total
    stats.linux.process.process_count.value = 1 + len(parts)
    return stats
