"""The resources of a whole pod in its status, as a real kubelet shows them."""

from world.pod_world import container, make_pod

from fleet.k8s.pods import Pod, PodSpec, PodStatus
from fleet.kubelet.pods.status_generate import container_resources_shown, resources_shown

ASKED = b'{"limits":{"cpu":"1","example.com/gpu":"1"},"requests":{"cpu":"1"}}'
RUNNING = b'{"limits":{"cpu":"1"},"requests":{"cpu":"1"}}'
ENDED = b'{"requests":{"cpu":"1"}}'


def pod(phase: str) -> Pod:
    made = make_pod(container(), resources_json=ASKED, running_json=RUNNING, ended_json=ENDED)
    made.status = PodStatus(phase=phase)
    return made


def shown(made: Pod, old_phase: str, old: bytes, spec: PodSpec | None = None) -> bytes:
    return resources_shown(made, spec or made.spec, PodStatus(phase=old_phase, resources_json=old))


def test_until_the_api_shows_that_it_runs_all_is_told_that_was_asked_for() -> None:
    assert shown(pod("Pending"), "Running", b"") == ASKED
    assert shown(pod("Running"), "Running", ASKED) == RUNNING
    assert shown(pod("Running"), "Running", RUNNING) == RUNNING


def test_what_the_cgroup_does_not_have_goes_with_the_end_of_the_pod() -> None:
    assert shown(pod("Running"), "Succeeded", RUNNING) == ENDED
    assert shown(pod("Succeeded"), "Succeeded", RUNNING) == ENDED
    assert shown(pod("Failed"), "Failed", ASKED) == ASKED
    assert shown(pod("Succeeded"), "Succeeded", b"") == ASKED


def test_a_resize_leaves_the_request_of_memory_as_it_was() -> None:
    made = pod("Running")
    both = b'{"limits":{"memory":"%b"},"requests":{"cpu":"1","memory":"%b"}}'
    after = made.spec._replace(
        running_json=both % (b"2Gi", b"2Gi"), ended_json=both % (b"2Gi", b"2Gi")
    )
    before = both % (b"1Gi", b"1Gi")
    assert shown(made, "Running", before, after) == both % (b"2Gi", b"1Gi")
    made.spec = after
    old = PodStatus(phase="Running", resources_json=before)  # not since 1.37
    assert resources_shown(made, after, old, keeps_memory=False) == both % (b"2Gi", b"2Gi")


def test_a_limit_that_a_resize_gives_to_one_of_two_containers_is_not_shown() -> None:
    made = pod("Running")
    after = made.spec._replace(running_json=RUNNING, ended_json=ENDED)
    assert shown(made, "Running", b'{"requests":{"cpu":"2"}}', after) == ENDED


def test_a_limit_that_a_container_never_had_is_told_before_it_is_applied() -> None:
    had = b'{"requests":{"cpu":"50m","memory":"8Mi"}}'
    given = b'{"limits":{"cpu":"100m","memory":"16Mi"},"requests":{"cpu":"75m","memory":"16Mi"}}'
    assert container_resources_shown(given, had) == (
        b'{"limits":{"cpu":"100m","memory":"16Mi"},"requests":{"cpu":"50m","memory":"8Mi"}}'
    )


def test_what_a_container_has_is_told_until_it_has_what_it_was_given() -> None:
    had = b'{"limits":{"cpu":"100m","memory":"64Mi"},"requests":{"cpu":"100m","memory":"64Mi"}}'
    given = b'{"limits":{"cpu":"150m","memory":"96Mi"},"requests":{"cpu":"150m","memory":"96Mi"}}'
    assert container_resources_shown(given, had) == had
    assert container_resources_shown(had, had) is had


def test_a_container_without_a_request_of_cpu_has_the_least_share_that_there_is() -> None:
    given = b'{"requests":{"cpu":"50m","memory":"8Mi"}}'
    assert container_resources_shown(given, b"{}") == b'{"requests":{"cpu":"2m","memory":"8Mi"}}'
    given = b'{"requests":{"cpu":"1m"}}'
    assert container_resources_shown(given, b"{}") == given
