"""The images of the node: what is there, and pulls that take time, fail, or need a secret.

Source: containerd's image service; what it answers is what fleet.profile.image_behavior says.
"""

import asyncio
import zlib

from fleet.clock import NS_PER_S
from fleet.k8s.pods import Pod
from fleet.profile.image_behavior import (
    ImageBehavior,
    PullError,
    default_size,
    parse_image,
    pull_error_text,
)
from fleet.profile.pod_behavior import select_behavior
from fleet.runtime.container_config import UNKNOWN_UID
from fleet.runtime.image_store import Image, ImageStore
from oracle.cri.applications import Lookup, all_containers
from oracle.cri.errors import not_found, printed
from oracle.cri.machine import Machine
from oracle.cri.records import Message

_STREAM_ERROR = 0x1A6E
_STREAM_TIME = 0x1A7E


class Images:
    """What this node has."""

    def __init__(self, machine: Machine, look_up: Lookup) -> None:
        self._machine = machine
        self._look_up = look_up
        self._store = ImageStore(machine.model)
        self._pulls: dict[str, asyncio.Event] = {}
        self._expected: dict[tuple[str, str], str] = {}

    def find(self, name: str) -> Image | None:
        """Return the image of a reference or an ID."""
        node = self._machine.node
        for number in self._store.numbers(node):
            image = self._store.image(number)
            if image.id == name:
                return image
        reference = parse_image(name)
        return None if reference.error else self._store.find(node, reference.full_name)

    def all(self) -> list[Image]:
        numbers = self._store.numbers(self._machine.node)
        return [self._store.image(number) for number in numbers]

    def used_bytes(self) -> int:
        return self._store.used_bytes(self._machine.node)

    def remove(self, name: str) -> None:
        """Delete an image; one that is not there is no error."""
        found = self.find(name)
        for number in self._store.numbers(self._machine.node):
            if found is not None and self._store.image(number).id == found.id:
                self._store.remove(self._machine.node, number)

    def expect(self, pod: Pod) -> None:
        """Take note of a pod that is going to have containers. See `user`."""
        for each in pod.spec.all_containers:
            if each.user.non_root and each.user.uid is None:
                self._expected[pod.uid, each.name] = each.image

    def taken(self, pod: Pod, name: str) -> None:
        """Take note that a container is created."""
        self._expected.pop((pod.uid, name), None)

    def user(self, image: Image) -> int:
        """Return the user that an image names.

        It is not known; fleet takes it to be root's if nobody minds. So it is here, as long as
        no container that must not be root's is about to be created from the image.
        """
        found = (self.find(name) for name in self._expected.values())
        return UNKNOWN_UID if any(each is not None and each.id == image.id for each in found) else 0

    async def pull(self, name: str, sandbox: Message, *, has_secret: bool) -> Image:
        """Pull an image for a pod. Raises CriError as the behaviour of the pod says."""
        reference = parse_image(name)
        if reference.error:
            raise not_found(reference.error)
        full_name = reference.full_name
        machine, model = self._machine, self._machine.model
        behavior = await self._behavior(name, full_name, sandbox)
        stream = zlib.crc32(full_name.encode(), zlib.crc32(sandbox.metadata.uid.encode()))
        begun_ns = machine.now_ns()
        cause = behavior.error
        if cause is PullError.UNAUTHORIZED and has_secret:
            cause = None
        if cause is not None and self._draw(_STREAM_ERROR, stream, begun_ns) < behavior.error_rate:
            takes_ns = model.image_pulls.duration_ns(behavior, 0, 0.5)
            await asyncio.sleep(takes_ns / NS_PER_S)
            raise printed(pull_error_text(cause, reference))
        found = self.find(full_name)
        size = found.size_bytes if found else behavior.size_bytes or default_size(full_name)
        other = self._pulls.get(full_name)
        u = self._draw(_STREAM_TIME, stream, begun_ns)
        sized = (
            behavior
            if behavior.error is not PullError.TIMEOUT
            else behavior.model_copy(update={"error": None})
        )
        takes_ns = model.image_pulls.duration_ns(sized, 0 if found or other else size, u)
        if other is None:
            self._pulls[full_name] = asyncio.Event()
        try:
            await asyncio.sleep(takes_ns / NS_PER_S)
            if other is not None:
                await other.wait()
        finally:
            if other is None:
                self._pulls.pop(full_name).set()
        self._store.add(machine.node, full_name, size, machine.now_ns())
        pulled = self._store.find(machine.node, full_name)
        assert pulled is not None, full_name
        return pulled

    async def _behavior(self, name: str, full_name: str, sandbox: Message) -> ImageBehavior:
        """Return what is special about an image in a pod: CRI does not say for which container."""
        model, metadata = self._machine.model, sandbox.metadata
        labels, annotations = dict(sandbox.labels), dict(sandbox.annotations)
        behavior = select_behavior(model.behaviors, labels, metadata.namespace, annotations)
        pod = await self._look_up(metadata.uid)
        containers = all_containers(pod) if pod is not None else ()
        wanted = next((each["name"] for each in containers if each.get("image") == name), "")
        wanted = wanted or _image_volume(pod, name)
        return model.image_pulls.found(behavior.container(wanted).image, full_name)

    def _draw(self, stream: int, key: int, count: int) -> float:
        return self._machine.draws.uniform(self._machine.node, stream << 32 | key, count)


def _image_volume(pod: dict[str, object] | None, name: str) -> str:
    """Return the volume of a pod that an image is for."""
    spec = pod["spec"] if pod is not None else {}
    assert isinstance(spec, dict), spec
    for volume in spec.get("volumes") or ():
        if (volume.get("image") or {}).get("reference") == name:
            return str(volume["name"])
    return ""
