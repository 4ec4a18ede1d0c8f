"""Volumes that do not unmount: when each is tried, and which can be."""

from dataclasses import replace

from world.pod_world import TOKEN_VOLUME, World, make_pod, turn_of

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.pods import Pod, VolumeSpec
from fleet.kubelet.environment import Environment
from fleet.kubelet.volumes.volume_manager import VolumeManager
from fleet.profile.pod_behavior import VolumeBehavior

STUCK = (("fleet.emulator/unmount-fails", "true"),)
HOST = VolumeSpec("logs", "hostPath", host_path="/var/log")
UNUSED = VolumeSpec("unused", "emptyDir", mounted=False)


def env_of(*, is_stuck: bool) -> Environment:
    env = World().env
    env.model = replace(env.model, broken=env.model.broken._replace(stuck_mounts=is_stuck))
    return env


def manager() -> VolumeManager:
    return World().loop._syncer.volumes


def waits(volumes: VolumeManager, pod: Pod, env: Environment, tries: int) -> list[float]:
    """Try as often as is allowed; return the seconds between the tries."""
    now_ns, found = NS_PER_S, []
    for _ in range(tries):
        due_ns = volumes.unmount(pod, turn_of(env, now_ns))
        assert volumes.unmount(pod, turn_of(env, due_ns - 1)) == due_ns  # not before
        found.append((due_ns - now_ns) / NS_PER_S)
        now_ns = due_ns
    return found


def test_the_wait_doubles_up_to_two_minutes() -> None:
    found = waits(manager(), make_pod(), env_of(is_stuck=True), 11)
    wanted = [0.5, 1, 2, 4, 8, 16, 32, 64, 122, 122, 122]
    assert all(0 <= a - b <= 0.1 for a, b in zip(found, wanted, strict=True)), found


def test_what_is_unmounted_is_forgotten_and_what_is_not_counts() -> None:
    volumes, stuck, well = manager(), env_of(is_stuck=True), env_of(is_stuck=False)
    turn = turn_of(stuck, NS_PER_S)
    due_ns = volumes.unmount(make_pod(), turn)
    assert volumes.unmount(make_pod(), turn_of(well, due_ns - NS_PER_MS)) == due_ns
    assert volumes.unmount(make_pod(), turn_of(well, due_ns)) == 0
    # One of the same name begins anew.
    again_ns = volumes.unmount(make_pod(), turn_of(stuck, due_ns))
    assert 0.5 <= (again_ns - due_ns) / NS_PER_S <= 0.6


def test_paths_of_the_host_and_what_no_container_mounts_need_no_unmount() -> None:
    pod = make_pod(volumes=(HOST, UNUSED))
    assert manager().unmount(pod, turn_of(env_of(is_stuck=True), NS_PER_S)) == 0


def test_a_pod_declares_it_of_itself() -> None:
    well = env_of(is_stuck=False)
    pod = make_pod(volumes=(TOKEN_VOLUME, VolumeSpec("data", "emptyDir")))
    assert manager().unmount(pod, turn_of(well, NS_PER_S)) == 0
    odd = make_pod(annotations=STUCK)
    volumes = manager()
    due_ns = volumes.unmount(odd, turn_of(well, NS_PER_S))
    assert due_ns
    assert volumes.unmount(make_pod(), turn_of(well, due_ns)) == 0
    assert not VolumeBehavior().unmount_fails
