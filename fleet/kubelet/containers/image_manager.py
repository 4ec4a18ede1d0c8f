"""ImageManager: makes sure that a container's image is there before the container is created.

    ensure --present--> ready
           --absent--> PULLING until `due_ns` --finish--> ready, or failed: 10 s back-off, doubling

How long a pull takes is known when it begins, and so is when its turn comes: pulls of one node are
served one after another, or so many at a time. Nothing is queued but the ends of those before it.

Credentials: GET of the ServiceAccount -> POST of a token, unless one is known -> all were asked.
The lookup comes before each pull, one provider after another. What fails is left out: the pull is
then tried without those credentials.
Source: pkg/kubelet/images/image_manager.go, EnsureImageExists, pullImage,
makeLookupPullCredentialsFunc; puller.go; helpers.go; pkg/credentialprovider/plugin/plugin.go,
provide, getServiceAccountData, getServiceAccountToken; pkg/kubelet/token/token_manager.go.
Differs: contents of pull secrets are not read: one that exists opens every private image. The
plug-ins of providers take no time and always have credentials for a token.
"""

import heapq
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fleet.clock import NS_PER_MS, NS_PER_S
from fleet.k8s.effects import ApiCall, Op, PodTarget, Reply, TokenRequest
from fleet.k8s.pods import Pod, PodUid, ServiceAccountView, Token, WaitingState
from fleet.kubelet.containers.image_gc_manager import arm_image_gc, arm_image_list
from fleet.kubelet.events import Reason
from fleet.kubelet.pod_worker import CredentialLookup, PodWorker
from fleet.kubelet.turn import Turn
from fleet.profile.image_behavior import (
    ImageBehavior,
    ImageReference,
    PullError,
    default_size,
    parse_image,
    pull_error_text,
)
from fleet.profile.node_model import NodeModel
from fleet.quantity import format_duration
from fleet.runtime.containers import BackOff, Sandbox
from fleet.runtime.image_store import Image

BACKOFF_MAX_NS = 300 * NS_PER_S  # MaxImageBackOff
QPS_EXCEEDED = "pull QPS exceeded"
ERR_IMAGE_PULL = "ErrImagePull"
_CRI_ERRORS = {
    "RegistryUnavailable": "the registry is unavailable",
    "SignatureValidationFailed": "the signature validation failed",
}
_STREAM_ERROR = 0x1A6E
_STREAM_TIME = 0x1A7E


class Ensured(NamedTuple):
    """How far an image is: there, being pulled until `due_ns`, or unavailable for `failure`.

    `events` are about the container, in order.
    """

    events: tuple[tuple[Reason, str], ...] = ()
    due_ns: int = 0
    failure: WaitingState | None = None


class Wanted(NamedTuple):
    """The image that a container, or an image volume, of a pod needs."""

    uid: PodUid
    image: str  # as the pod has it
    policy: str  # Always, IfNotPresent, Never
    behavior: ImageBehavior
    owner: str  # of its credentials: SOMEBODY if a pull secret exists, an account, "" without any


class _Pull(NamedTuple):
    """A pull under way, or waiting for its turn."""

    image: str
    name: str
    size_bytes: int
    asked_ns: int
    began_ns: int
    done_ns: int
    error: str
    owner: str  # of the credentials


@dataclass(slots=True, eq=False)
class ImageManager:
    """The pulls of one node. Empty until something is pulled."""

    _back_off: BackOff  # of images by their names, too
    # a pod pulls one image at a time
    _pulls: dict[PodUid, _Pull] = field(default_factory=dict)
    # when each of the pullers is free again; a heap
    _turns: list[int] = field(default_factory=list)
    _limiter: tuple[float, int] = (-1.0, 0)  # tokens at an instant; -1: never used

    def ensure(self, wanted: Wanted, turn: Turn) -> Ensured:
        """Look whether an image is there, and begin to pull it if it has to be.

        In fidelity light a pull takes no time and leaves no trace.
        """
        reference = parse_image(wanted.image)
        if reference.error:
            error = f'couldn\'t parse image name "{wanted.image}": {reference.error}'
            text = f'Failed to apply default image tag "{wanted.image}": {error}'
            return _failed("InvalidImageName", text, (Reason.FAILED_TO_INSPECT_IMAGE, text))
        model = turn.env.model
        behavior = model.image_pulls.found(
            wanted.behavior, reference.full_name, is_broken=model.broken.registries
        )
        wanted, policy = wanted._replace(behavior=behavior), wanted.policy
        if not turn.env.fidelity.pulls_images and behavior.error is None and policy != "Never":
            return Ensured()
        settled = self._without_pull(wanted, reference, turn) or self._waiting(wanted, turn.now_ns)
        if settled is not None:
            return settled
        pull = self._begin(wanted, reference, turn)
        assert wanted.uid not in self._pulls, wanted
        self._pulls[wanted.uid] = pull
        if not turn.env.fidelity.pulls_images:
            return self.finish(wanted.uid, turn)
        return Ensured(((Reason.PULLING, f'Pulling image "{wanted.image}"'),), pull.done_ns)

    def looks_up(self, wanted: Wanted, turn: Turn) -> str:
        """Return the full name of an image for which credentials are looked up, "" of another.

        Also while a back-off puts a pull off, and where a pod is to show that it may use what the
        node has pulled. Source: EnsureImageExists, pullImage, MustAttemptImagePull.
        """
        reference = parse_image(wanted.image)
        found = turn.env.images.find(turn.node, reference.full_name)
        settled = self._without_pull(wanted, reference, turn)
        if settled is not None and not _checks_credentials(found, turn):
            return ""
        return "" if reference.error else reference.full_name

    def finish(self, uid: PodUid, turn: Turn) -> Ensured:
        """Take the end of the pull of a pod."""
        pull = self._pulls.pop(uid)
        if pull.error:
            return self._fail(uid, pull, pull.error, turn.now_ns)
        images = turn.env.images
        images.add(turn.node, pull.name, pull.size_bytes, turn.now_ns, pull.owner)
        if turn.env.fidelity.pulls_images:
            arm_image_list(turn)
            arm_image_gc(turn)
        took = format_duration((turn.now_ns - pull.began_ns) // NS_PER_MS * NS_PER_MS)
        waited = format_duration((turn.now_ns - pull.asked_ns) // NS_PER_MS * NS_PER_MS)
        text = (
            f'Successfully pulled image "{pull.image}" in {took} ({waited} including waiting). '
            f"Image size: {pull.size_bytes} bytes."
        )
        return Ensured(((Reason.PULLED, text),))

    def _is_usable(self, wanted: Wanted, reference: ImageReference, turn: Turn) -> bool:
        """Return whether a node has an image, and the pod may use it.

        One that was pulled with the credentials of others has to be pulled again.
        Source: images/pullmanager/image_pull_manager.go, MustAttemptImagePull.
        Differs: without credentials a pod may use it unless a PodBehavior says that it is private.
        """
        found = turn.env.images.find(turn.node, reference.full_name)
        if found is None:
            return False
        is_asked = wanted.owner or wanted.behavior.error is PullError.UNAUTHORIZED
        return not (is_asked and _checks_credentials(found, turn, wanted.owner))

    def _without_pull(
        self, wanted: Wanted, reference: ImageReference, turn: Turn
    ) -> Ensured | None:
        """Return how an image is that is not to be pulled, None when it is."""
        if wanted.policy != "Always" and self._is_usable(wanted, reference, turn):
            checks = turn.env.model.release.checks_credentials
            usable = " and can be accessed by the pod" if checks else ""
            text = f'Container image "{wanted.image}" already present on machine{usable}'
            return Ensured(((Reason.PULLED, text),))
        if wanted.policy == "Never":
            text = f'Container image "{wanted.image}" is not present with pull policy of Never'
            return _failed("ErrImageNeverPull", text, (Reason.ERR_IMAGE_NEVER_PULL, text))
        return None

    def _waiting(self, wanted: Wanted, now_ns: int) -> Ensured | None:
        """Return that an image is in back-off, if it is."""
        error = self._back_off.reason(wanted.uid, wanted.image, now_ns)
        if not error:
            return None
        text = f'Back-off pulling image "{wanted.image}"'
        return _failed("ImagePullBackOff", f"{text}: {error}", (Reason.BACK_OFF_PULL_IMAGE, text))

    def _begin(self, wanted: Wanted, reference: ImageReference, turn: Turn) -> _Pull:
        """Plan a pull: when its turn comes, how long it takes, how it ends."""
        model, behavior, name = turn.env.model, wanted.behavior, reference.full_name
        stream = zlib.crc32(name.encode(), zlib.crc32(wanted.uid.encode()))
        found = turn.env.images.find(turn.node, name)
        size = found.size_bytes if found else behavior.size_bytes or default_size(name)
        is_timed = turn.env.fidelity.pulls_images
        began_ns = self._take_turn(turn) if is_timed else turn.now_ns
        error = ""
        cause = behavior.error
        if cause is PullError.UNAUTHORIZED and wanted.owner:
            cause = None
        if cause is not None:
            u = turn.env.draws.uniform(turn.node, _STREAM_ERROR << 32 | stream, turn.now_ns)
            error = pull_error_text(cause, reference) if u < behavior.error_rate else ""
        duration_ns = 0
        if is_timed and not self._may_pull(model, began_ns):
            error = QPS_EXCEEDED
        elif is_timed:
            u = turn.env.draws.uniform(turn.node, _STREAM_TIME << 32 | stream, turn.now_ns)
            # When another pod's pull of the same image ends, 0 for none.
            pulls = self._pulls.values()
            other_ns = max(
                (each.done_ns for each in pulls if each.name == name and not each.error), default=0
            )
            is_there = bool(error) or found is not None or other_ns
            duration_ns = model.image_pulls.duration_ns(behavior, 0 if is_there else size, u)
            if not error:
                duration_ns = max(duration_ns, other_ns - began_ns)
        done_ns = began_ns + duration_ns
        if is_timed:
            heapq.heappush(self._turns, done_ns)
        at = (turn.now_ns, began_ns, done_ns)
        return _Pull(wanted.image, name, size, *at, error, wanted.owner)

    def _take_turn(self, turn: Turn) -> int:
        """Return when the next pull begins, and take that turn. Source: puller.go."""
        kubelet = turn.env.model.kubelet
        limit = 1 if kubelet.serialize_image_pulls else kubelet.max_parallel_image_pulls
        while self._turns and self._turns[0] <= turn.now_ns:
            heapq.heappop(self._turns)
        if not limit or len(self._turns) < limit:
            return turn.now_ns
        return heapq.heappop(self._turns)

    def _may_pull(self, model: NodeModel, at_ns: int) -> bool:
        """Take a token of the kubelet's limit. Source: helpers.go, throttleImagePulling."""
        if not model.image_pulls.is_declared or not model.kubelet.registry_pull_qps:
            return True
        tokens, since_ns = self._limiter
        if tokens < 0:
            tokens = model.kubelet.registry_burst
        else:
            tokens += (at_ns - since_ns) / NS_PER_S * model.kubelet.registry_pull_qps
        tokens = min(tokens, model.kubelet.registry_burst)
        may = tokens >= 1
        self._limiter = (tokens - may, at_ns)
        return may

    def _fail(self, uid: PodUid, pull: _Pull, error: str, now_ns: int) -> Ensured:
        """Count a failure towards the back-off. Source: evalCRIPullErr; flowcontrol/backoff.go."""
        reason, text = ERR_IMAGE_PULL, error
        for name, cause in _CRI_ERRORS.items():
            if error.startswith(name):
                reason, rest = name, error.removeprefix(name)
                text = f"image pull failed for {pull.image} because {cause}{rest}"
        why = f"{reason}: {text}"
        self._back_off.next(uid, pull.image, now_ns, now_ns, BACKOFF_MAX_NS, why)
        return _failed(
            reason, text, (Reason.FAILED, f'Failed to pull image "{pull.image}": {error}')
        )


def _checks_credentials(image: Image | None, turn: Turn, owner: str = "") -> bool:
    images, checks = turn.env.images, turn.env.model.release.checks_credentials
    return checks and image is not None and not images.is_open(turn.node, image, owner)


def adopt_images(pod: Pod, sandbox: Sandbox, turn: Turn) -> None:
    """Find the images of containers that a kubelet before us started."""
    if not turn.env.fidelity.pulls_images:
        return
    behavior = turn.behavior(pod)
    for container in sandbox.containers:
        spec = pod.find(container.name)
        name = parse_image(spec.image).full_name if spec is not None else ""
        if name and turn.env.images.find(turn.node, name) is None:
            size = behavior.container(container.name).image.size_bytes or default_size(name)
            turn.env.images.add(turn.node, name, size, turn.now_ns)
            arm_image_list(turn)


def images_of(pod: Pod, sandbox: Sandbox) -> Iterator[str]:
    """Yield the full names of the images that the containers of a pod use, also as volumes."""
    specs = [pod.find(each.name) for each in sandbox.containers]
    for each in (*specs, *(pod.spec.volumes if specs else ())):
        if each is not None and each.image:
            yield parse_image(each.image).full_name


def release_images(pod: Pod, turn: Turn) -> None:
    """Note that a pod is gone, which used these images until now."""
    images = [each.image for each in pod.spec.all_containers]
    images += [each.image for each in pod.spec.volumes]
    names = tuple(parse_image(each).full_name for each in images if each)
    turn.env.images.release(turn.node, names, turn.now_ns)


def _failed(reason: str, message: str, event: tuple[Reason, str]) -> Ensured:
    """Source: kuberuntime_container.go, startContainer, which records the second event."""
    events = (event, (Reason.FAILED, f"Error: {reason}"))
    return Ensured(events, 0, WaitingState(reason, message))


TOKEN_LIFE_S = 3600  # what the API server gives a token whose life nobody asked for


def begin_lookup(worker: PodWorker, image: str, turn: Turn) -> bool:
    """Begin a lookup for an image, by its full name; return whether there is one."""
    model = turn.env.model
    providers = tuple(each for each in model.credential_providers if each.matches(image))
    asks = worker.pod.spec.service_account and model.release.asks_providers_with_tokens
    if not (asks and providers):
        return False
    worker.lookup = CredentialLookup(image, providers)
    _read_account(worker.pod, turn)
    return True


def on_lookup_reply(worker: PodWorker, call: ApiCall, reply: Reply, turn: Turn) -> None:
    """Take a ServiceAccount or a token, and go on."""
    pod, lookup = worker.pod, worker.lookup
    if lookup is None or not lookup.left:
        return
    audience = lookup.left[0].token_attributes.service_account_token_audience
    if call.op is Op.GET_SERVICE_ACCOUNT and reply.ok:
        assert isinstance(reply.record, ServiceAccountView), reply
        wanted = lookup.left[0].token_attributes.required_service_account_annotation_keys
        if set(wanted) <= reply.record.annotations:
            if (worker.pull_tokens or {}).get(audience, 0) <= turn.now_ns:
                names = (pod.namespace, pod.spec.service_account, audience, 0, pod.name, pod.uid)
                request = TokenRequest(*names, account_uid=reply.record.uid)
                turn.call(Op.CREATE_PULL_TOKEN, pod.uid, request)
                return
            lookup.is_found = True
    elif call.op is Op.CREATE_PULL_TOKEN and reply.ok:
        lookup.is_found = True
        life_ns = TOKEN_LIFE_S * NS_PER_S
        if isinstance(reply.record, Token) and reply.record.expires_s:
            life_ns = max(reply.record.expires_s * NS_PER_S - turn.wall_ns, 0)
        # It is used for 80 % of its life: token_manager.go, requiresRefresh.
        known = worker.pull_tokens or {}
        worker.pull_tokens = {**known, audience: turn.now_ns + life_ns * 4 // 5}
    lookup.left = lookup.left[1:]
    if lookup.left:
        _read_account(pod, turn)


def _read_account(pod: Pod, turn: Turn) -> None:
    target = PodTarget(pod.namespace, pod.spec.service_account)
    turn.call(Op.GET_SERVICE_ACCOUNT, pod.uid, target)
