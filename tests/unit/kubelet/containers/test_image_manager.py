import functools
from dataclasses import replace

import pytest
from world.node_world import NODE, facts, turn

from fleet.clock import NS_PER_MS, NS_PER_S, Draws
from fleet.k8s.effects import Outbox, SetTimer, Timer
from fleet.k8s.pods import PodUid, WaitingState
from fleet.kubelet.containers.image_gc_manager import on_list_timer
from fleet.kubelet.containers.image_manager import Ensured, ImageManager, Wanted
from fleet.kubelet.environment import KUBELET, LIGHT, Environment
from fleet.kubelet.events import Reason
from fleet.profile.distribution import constant
from fleet.profile.image_behavior import DEFAULT_IMAGE, ImageBehavior, ImagePulls, PullError
from fleet.profile.kubelet_configuration import KubeletConfiguration
from fleet.profile.loader import load_mix
from fleet.profile.node_model import NodeImage, NodeModel
from fleet.profile.release import V1_34
from fleet.runtime.image_store import Image

NGINX = "docker.io/library/nginx:1"
SECOND = ImageBehavior(size_bytes=1_000_000, pull_time=constant(NS_PER_S))
MISSING = SECOND.model_copy(update={"error": PullError.NOT_FOUND})


@functools.cache
def model() -> NodeModel:
    return load_mix().model_of(0)


PARALLEL = KubeletConfiguration(serialize_image_pulls=False)


class Node:
    """One image manager; time stands at `now_ns`."""

    def __init__(self, *, light: bool = False, **changes: object) -> None:
        changed = replace(model(), **changes)  # type: ignore[arg-type]
        self.env = Environment(changed, Draws(3), fidelity=LIGHT if light else KUBELET)
        self.manager = ImageManager()
        self.out: Outbox = []
        self.now_ns = 1000 * NS_PER_S

    def ensure(
        self,
        image: str = "nginx:1",
        behavior: ImageBehavior = SECOND,
        *,
        uid: str = "u",
        policy: str = "IfNotPresent",
        has_secret: bool = False,
    ) -> Ensured:
        wanted = Wanted(PodUid(uid), image, policy, behavior, has_secret)
        return self.manager.ensure(wanted, turn(self.env, self.now_ns, self.out))

    def finish(self, due_ns: int, uid: str = "u") -> Ensured:
        self.now_ns = due_ns
        return self.manager.finish(PodUid(uid), turn(self.env, due_ns, self.out))

    def pull(self, *args: object, uid: str = "u", **fields: object) -> Ensured:
        begun = self.ensure(*args, uid=uid, **fields)  # type: ignore[arg-type]
        assert begun.due_ns, begun
        return self.finish(begun.due_ns, uid)

    def after(self, seconds: float) -> None:
        self.now_ns += int(seconds * NS_PER_S)

    def image(self) -> Image | None:
        return self.env.images.find(NODE, NGINX)


def test_an_absent_image_is_pulled_once() -> None:
    node = Node()
    begun = node.ensure()
    assert begun == Ensured(((Reason.PULLING, 'Pulling image "nginx:1"'),), node.now_ns + NS_PER_S)
    assert node.image() is None
    done = node.finish(begun.due_ns)
    text = (
        'Successfully pulled image "nginx:1" in 1s (1s including waiting). '
        "Image size: 1000000 bytes."
    )
    assert done == Ensured(((Reason.PULLED, text),))
    assert node.image() is not None
    again = node.ensure(uid="other")
    present = 'Container image "nginx:1" already present on machine and can be accessed by the pod'
    assert again == Ensured(((Reason.PULLED, present),))


def test_always_asks_the_registry_again_but_loads_nothing() -> None:
    node = Node(image_pulls=ImagePulls(bandwidth=1_000_000, latency=constant(300 * NS_PER_MS)))
    node.pull(policy="Always")
    again = node.pull(policy="Always")
    assert again.events[0][1] == (
        'Successfully pulled image "nginx:1" in 300ms (300ms including waiting). '
        "Image size: 1000000 bytes."
    )


def test_never_takes_only_what_is_there() -> None:
    node = Node(images_preloaded=(NodeImage(("redis:8",), 7),))
    text = 'Container image "nginx:1" is not present with pull policy of Never'
    assert node.ensure(policy="Never") == Ensured(
        ((Reason.ERR_IMAGE_NEVER_PULL, text), (Reason.FAILED, "Error: ErrImageNeverPull")),
        0,
        WaitingState("ErrImageNeverPull", text),
    )
    assert node.ensure("redis:8", policy="Never").failure is None


def test_a_name_that_is_none_is_not_pulled() -> None:
    text = (
        'Failed to apply default image tag "Nginx": couldn\'t parse image name "Nginx": invalid '
        "reference format: repository name (library/Nginx) must be lowercase"
    )
    for light in (False, True):
        assert Node(light=light).ensure("Nginx") == Ensured(
            ((Reason.FAILED_TO_INSPECT_IMAGE, text), (Reason.FAILED, "Error: InvalidImageName")),
            0,
            WaitingState("InvalidImageName", text),
        )


def test_a_failure_is_told_and_followed_by_a_doubling_back_off() -> None:
    node = Node()
    error = (
        f'rpc error: code = NotFound desc = failed to pull and unpack image "{NGINX}": '
        f'failed to resolve reference "{NGINX}": {NGINX}: not found'
    )
    for delay_s in (10, 20, 40, 80, 160, 300, 300):
        failed = node.pull(behavior=MISSING)
        assert failed == Ensured(
            (
                (Reason.FAILED, f'Failed to pull image "nginx:1": {error}'),
                (Reason.FAILED, "Error: ErrImagePull"),
            ),
            0,
            WaitingState("ErrImagePull", error),
        )
        node.after(delay_s - 0.001)
        text = 'Back-off pulling image "nginx:1"'
        assert node.ensure(behavior=MISSING) == Ensured(
            (
                (Reason.BACK_OFF_PULL_IMAGE, text),
                (Reason.FAILED, "Error: ImagePullBackOff"),
            ),
            0,
            WaitingState("ImagePullBackOff", f"{text}: ErrImagePull: {error}"),
        )
        node.after(0.001)
    assert not Reason.BACK_OFF_PULL_IMAGE.warning
    assert node.ensure().due_ns  # the behaviour changed: now it can be pulled


def test_the_back_off_is_a_pods_and_an_images_and_is_forgotten() -> None:
    node = Node()
    node.pull(behavior=MISSING)
    assert node.ensure("redis:8").due_ns
    assert node.ensure(uid="other").due_ns
    node = Node()
    node.pull(behavior=MISSING)
    node.manager.forget(PodUid("u"))
    assert node.ensure().due_ns
    node = Node()
    node.pull(behavior=MISSING)
    node.after(11)
    node.pull(behavior=MISSING)
    node.after(601)
    node.pull(behavior=MISSING)
    node.after(10)  # not 40: it began anew
    assert node.ensure().due_ns


@pytest.mark.parametrize(
    ("error", "reason", "start"),
    [
        (
            PullError.REGISTRY_UNAVAILABLE,
            "RegistryUnavailable",
            "image pull failed for nginx:1 because the registry is unavailable: failed to pull",
        ),
        (
            PullError.SIGNATURE_INVALID,
            "SignatureValidationFailed",
            "image pull failed for nginx:1 because the signature validation failed: Source image",
        ),
    ],
)
def test_some_errors_have_reasons_of_their_own(error: PullError, reason: str, start: str) -> None:
    failed = Node().pull(behavior=ImageBehavior(error=error))
    assert failed.failure is not None
    assert failed.failure.reason == reason
    assert failed.failure.message.startswith(start)
    assert failed.events[1] == (Reason.FAILED, f"Error: {reason}")


def test_a_registry_that_cannot_be_reached_times_out() -> None:
    node = Node()
    begun = node.ensure(behavior=ImageBehavior(error=PullError.TIMEOUT))
    assert begun.due_ns - node.now_ns == 30 * NS_PER_S


def test_a_share_of_pulls_fails_where_that_is_declared() -> None:
    node = Node()
    flaky = SECOND.model_copy(update={"error": PullError.RATE_LIMITED, "error_rate": 0.3})
    failed = sum(
        node.pull(behavior=flaky, uid=f"u{at}", policy="Always").failure is not None
        for at in range(300)
    )
    assert 60 < failed < 120


def test_pulls_are_served_one_after_another() -> None:
    node = Node()
    begun = node.now_ns
    ends = [node.ensure(f"i:{at}", uid=f"u{at}").due_ns for at in range(3)]
    assert ends == [begun + seconds * NS_PER_S for seconds in (1, 2, 3)]
    assert (
        node.finish(ends[2], "u2")
        .events[0][1]
        .startswith('Successfully pulled image "i:2" in 1s (3s including waiting).')
    )
    assert node.ensure("i:9").due_ns == ends[2] + NS_PER_S


@pytest.mark.parametrize(("limit", "seconds"), [(0, [1, 1, 1, 1]), (2, [1, 1, 2, 2])])
def test_pulls_run_side_by_side_if_configured(limit: int, seconds: list[int]) -> None:
    node = Node(kubelet=PARALLEL.model_copy(update={"max_parallel_image_pulls": limit}))
    ends = [node.ensure(f"i:{at}", uid=f"u{at}").due_ns for at in range(4)]
    assert ends == [node.now_ns + each * NS_PER_S for each in seconds]


def test_two_pods_that_pull_the_same_image_load_it_once() -> None:
    node = Node(kubelet=PARALLEL)
    first = node.ensure(uid="a").due_ns
    node.after(0.4)
    assert node.ensure(uid="b").due_ns == first
    serial = Node()
    first = serial.ensure(uid="a").due_ns
    second = serial.ensure(uid="b").due_ns
    assert 0 < second - first < 20 * NS_PER_MS  # it is there by then


def test_declared_registries_are_asked_five_times_a_second_at_most() -> None:
    fast = ImagePulls(bandwidth=1 << 40, latency=constant(0))
    node = Node(image_pulls=fast, kubelet=PARALLEL)
    failures = [node.pull(f"i:{at}", DEFAULT_IMAGE, uid=f"u{at}").failure for at in range(12)]
    assert failures[:10] == [None] * 10
    assert failures[10] == WaitingState("ErrImagePull", "pull QPS exceeded")
    node.after(0.2)
    assert node.pull("i:99", DEFAULT_IMAGE, uid="v").failure is None
    undeclared = Node(kubelet=PARALLEL)
    for at in range(30):
        assert undeclared.pull(f"i:{at}", DEFAULT_IMAGE, uid=f"u{at}").failure is None


def test_a_private_image_needs_a_secret_also_when_another_pod_pulled_it() -> None:
    private = SECOND.model_copy(update={"error": PullError.UNAUTHORIZED})
    node = Node()
    failed = node.pull(behavior=private, uid="a").failure
    assert failed is not None
    assert "pull access denied" in failed.message
    assert node.pull(behavior=private, uid="b", has_secret=True).failure is None
    assert node.ensure(behavior=private, uid="c", has_secret=True).due_ns == 0
    assert node.pull(behavior=private, uid="d").failure is not None
    never = node.ensure(behavior=private, uid="e", policy="Never").failure
    assert never is not None
    assert never.reason == "ErrImageNeverPull"
    old = Node(release=V1_34)
    old.pull(behavior=private, uid="b", has_secret=True)
    assert old.ensure(behavior=private, uid="d").failure is None
    preloaded = Node(images_preloaded=(NodeImage(("nginx:1",), 7),))
    assert preloaded.ensure(behavior=private).failure is None


def test_a_pull_has_the_list_in_the_node_status_refreshed_within_30_s() -> None:
    node = Node()
    node.pull()
    node.pull("redis:8")
    [timer] = node.out
    assert isinstance(timer, SetTimer)
    assert timer.timer is Timer.IMAGES
    known = facts()
    known.started_ns = node.now_ns - 70 * NS_PER_S  # the refreshes began with the kubelet
    assert not on_list_timer(timer.key, turn(node.env, node.now_ns, node.out, known))
    [_, timer] = node.out
    assert isinstance(timer, SetTimer)
    assert timer.due_ns - node.now_ns == 20 * NS_PER_S
    assert on_list_timer(timer.key, turn(node.env, timer.due_ns, node.out, known))


def test_in_light_pulls_take_no_time_and_leave_no_trace() -> None:
    node = Node(light=True)
    assert node.ensure() == Ensured()
    assert node.ensure(policy="Always") == Ensured()
    assert node.env.images.node(NODE) is None
    failed = node.ensure(behavior=MISSING).failure
    assert failed is not None
    assert failed.reason == "ErrImagePull"
    again = node.ensure(behavior=MISSING).failure
    assert again is not None
    assert again.reason == "ImagePullBackOff"
    never = node.ensure(uid="v", policy="Never").failure
    assert never is not None
    assert never.reason == "ErrImageNeverPull"
    assert node.out == []
