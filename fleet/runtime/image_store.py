"""The images of simulated nodes: what a container runtime has on disk.

The nodes of a profile share all that is known of images; a node is one integer with a bit for each
image that it has. A node that never pulled anything has no entry: it has what its profile preloads.
Source: the CRI's image service, as pkg/kubelet/kuberuntime/kuberuntime_image.go sees it.
Differs: images share no layers; one that is pulled again is the same one.
"""

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from fleet.profile.image_behavior import digest_name
from fleet.profile.node_model import NodeModel
from fleet.runtime.containers import full_name, shown_image

NAMES_MAX = 5  # Source: pkg/kubelet/nodestatus/setters.go, MaxNamesPerImageInNodeStatus
PINNED = "registry.k8s.io/pause"  # containerd pins the image of its sandboxes
LISTS_MAX = 256
SOMEBODY = "pull secret"  # all pods with a pull secret are one owner: nobody reads what it says


class Image(NamedTuple):
    """One image: all its names, digests first, in full."""

    id: str  # sha256:...
    names: tuple[str, ...]
    size_bytes: int
    pinned: bool = False


@dataclass(slots=True, eq=False)
class NodeImages:
    """The images of one node, once they are not its profile's any more.

    Three sets, a bit for each image: what is there, what the cache behind the node status saw
    last, and what was reported. Times are instants of the node's clock.
    """

    present: int
    listed: int
    reported: int
    bytes: int  # of those that are there
    owners: set[tuple[str, str]] = field(default_factory=set)  # whose credentials pulled an ID
    list_due_ns: int = 0  # the refresh of the cache, 0 for never
    gc_due_ns: int = 0  # the timer that counts
    gc_failed: int = 0  # number of the last collection that failed; the first, at start, does
    seen_ns: dict[int, int] = field(default_factory=dict)  # since when a pulled image is there
    used_ns: dict[int, int] = field(default_factory=dict)  # when a pod last gave an image up


class ImageStore:
    """What the nodes of one profile have; made once, with the images that it preloads."""

    def __init__(self, model: NodeModel) -> None:
        self._images: list[Image] = []
        self._by_name: dict[str, int] = {}  # the images that ever had a name, as bits
        self._nodes: dict[int, NodeImages] = {}
        self._lists: dict[int, bytes] = {}
        self._shown: dict[str, tuple[str, str]] = {}  # of what is preloaded, by its names
        self._max = model.kubelet.node_status_max_images
        for each in model.images_preloaded:
            names = tuple(map(full_name, each.names))
            tag = next((name for name in names if "@" not in name), "")
            digest = next((name for name in names if "@" in name), "")
            self._shown |= dict.fromkeys(names, (tag, digest))
            self._number(names, each.size_bytes)
        self._preloaded = (1 << len(self._images)) - 1
        self._preloaded_bytes = sum(each.size_bytes for each in self._images)

    def node(self, node: int) -> NodeImages | None:
        """Return what differs from the profile, None while nothing does."""
        return self._nodes.get(node)

    def entry(self, node: int) -> NodeImages:
        """Return what a node has, made when it differs from its profile for the first time."""
        found = self._nodes.get(node)
        if found is None:
            found = self._nodes[node] = NodeImages(*(self._preloaded,) * 3, self._preloaded_bytes)
        return found

    def find(self, node: int, name: str) -> Image | None:
        """Return the image that a node has under a full name."""
        found = self._by_name.get(name, 0) & self._present(node)
        return self._images[found.bit_length() - 1] if found else None

    def is_open(self, node: int, image: Image, owner: str = "") -> bool:
        """Return whether an image was pulled for an owner, for all pods, or by no kubelet."""
        entry = self._nodes.get(node)
        known = {(image.id, ""), (image.id, owner)}
        if entry is not None and not known.isdisjoint(entry.owners):
            return True
        return any(self._by_name[name] & self._preloaded for name in image.names)

    def shown(self, image: str) -> tuple[str, str]:
        """Return what a container of an image shows as its image and its imageID.

        An image that is named by its digest shows its tag, if the node has one for it.
        Source: containerd, toCRIContainerStatus.
        """
        name, (shown, by_digest) = full_name(image), shown_image(image)
        tag, digest = self._shown.get(name, ("", ""))
        return (tag if "@" in name and tag else shown), digest or by_digest

    def used_bytes(self, node: int) -> int:
        """Return how much of a node's disk its images take."""
        found = self._nodes.get(node)
        return self._preloaded_bytes if found is None else found.bytes

    def add(
        self, node: int, name: str, size_bytes: int, now_ns: int, owner: str = SOMEBODY
    ) -> NodeImages:
        """Put an image on a node under its full name; `owner`: of the credentials, "" for none."""
        number = self._number(_names(name), size_bytes)
        found = self.entry(node)
        if not found.present >> number & 1:
            found.present |= 1 << number
            found.bytes += size_bytes
            found.seen_ns[number] = now_ns
        found.owners.add((self._images[number].id, owner))
        return found

    def remove(self, node: int, number: int) -> None:
        """Delete one image of a node by its number."""
        found = self.entry(node)
        assert found.present >> number & 1, number
        found.present &= ~(1 << number)
        found.owners = {each for each in found.owners if each[0] != self._images[number].id}
        found.bytes -= self._images[number].size_bytes
        found.seen_ns.pop(number, None)
        found.used_ns.pop(number, None)

    def release(self, node: int, names: tuple[str, ...], now_ns: int) -> None:
        """Note that a pod gave up the images of these full names."""
        found = self._nodes.get(node)
        if found is not None:
            for name in names:
                bits = self._by_name.get(name, 0) & found.present
                if bits:
                    found.used_ns[bits.bit_length() - 1] = now_ns

    def numbers(self, node: int) -> list[int]:
        """Return the numbers of the images that a node has."""
        present = self._present(node)
        return [number for number in range(present.bit_length()) if present >> number & 1]

    def numbers_of(self, node: int, names: tuple[str, ...]) -> set[int]:
        """Return the numbers of those images of a node that have one of these full names."""
        present = self._present(node)
        found = (self._by_name.get(name, 0) & present for name in names)
        return {bits.bit_length() - 1 for bits in found if bits}

    def image(self, number: int) -> Image:
        """Return an image by its number."""
        return self._images[number]

    def status_json(self, images: int | None = None) -> bytes:
        """Return a set of images as a member of the status of a Node; None: what is preloaded.

        Source: nodestatus/setters.go, Images; images/image_gc_manager.go, imageCache.set.
        """
        chosen = self._preloaded if images is None else images
        found = self._lists.get(chosen)
        if found is None:
            if len(self._lists) >= LISTS_MAX:
                self._lists.clear()
            listed = [each for at, each in enumerate(self._images) if chosen >> at & 1]
            listed.sort(key=lambda image: (image.size_bytes, image.id), reverse=True)
            if self._max >= 0:
                del listed[self._max :]
            entries = [
                {"names": image.names[:NAMES_MAX], "sizeBytes": image.size_bytes}
                for image in listed
            ]
            found = self._lists[chosen] = b'"images":%b' % orjson.dumps(entries or None)
        return found

    def _present(self, node: int) -> int:
        found = self._nodes.get(node)
        return self._preloaded if found is None else found.present

    def _number(self, names: tuple[str, ...], size_bytes: int) -> int:
        """Return the number of an image; another size under the same names is another image."""
        bits = self._by_name.get(names[-1], 0) if names else 0
        while bits:
            number = bits.bit_length() - 1
            if self._images[number].size_bytes == size_bytes:
                return number
            bits &= ~(1 << number)
        number = len(self._images)
        image_id = "sha256:" + hashlib.sha256(f"{names}{size_bytes}".encode()).hexdigest()
        pinned = any(name.startswith(PINNED) for name in names)
        self._images.append(Image(image_id, names, size_bytes, pinned))
        for name in names:
            self._by_name[name] = self._by_name.get(name, 0) | 1 << number
        return number


def _names(full_name: str) -> tuple[str, ...]:
    by_digest = digest_name(full_name)
    return (by_digest,) if by_digest == full_name else (by_digest, full_name)
