"""The ImageService of CRI. Source: api.proto; containerd's CRI plug-in."""

from fleet.runtime.image_store import Image
from oracle.cri.images import Images
from oracle.cri.machine import Machine
from oracle.cri.messages import message_class
from oracle.cri.records import Message

IMAGE_INODES = 1000
"""Files of an image, of which nothing is known."""


class ImageService:
    """One method for each of CRI's."""

    def __init__(self, machine: Machine, images: Images, mountpoint: str) -> None:
        self._machine = machine
        self._images = images
        self._mountpoint = mountpoint

    async def list_images(self, request: Message) -> Message:
        wanted = request.filter.image.image
        found = [self._images.find(wanted)] if wanted else self._images.all()
        listed = [self._message(each) for each in found if each is not None]
        return message_class("ListImagesResponse")(images=listed)

    async def image_status(self, request: Message) -> Message:
        """Return an image; one that is not there is an empty answer, not an error."""
        found = self._images.find(request.image.image)
        answer = message_class("ImageStatusResponse")()
        if found is not None:
            answer.image.CopyFrom(self._message(found))
        return answer

    async def pull_image(self, request: Message) -> Message:
        has_secret = request.HasField("auth")
        pulled = await self._images.pull(
            request.image.image, request.sandbox_config, has_secret=has_secret
        )
        return message_class("PullImageResponse")(image_ref=pulled.id)

    async def remove_image(self, request: Message) -> Message:
        self._images.remove(request.image.image)
        return message_class("RemoveImageResponse")()

    async def image_fs_info(self, _request: Message) -> Message:
        answer = message_class("ImageFsInfoResponse")()
        for filesystems in (answer.image_filesystems, answer.container_filesystems):
            usage = filesystems.add()
            usage.timestamp = self._machine.wall_ns(self._machine.now_ns())
            usage.fs_id.mountpoint = self._mountpoint
            usage.used_bytes.value = self._images.used_bytes()
            usage.inodes_used.value = IMAGE_INODES * len(self._images.all())
        return answer

    def _message(self, image: Image) -> Message:
        shown = message_class("Image")(
            id=image.id,
            repo_tags=[each for each in image.names if "@" not in each],
            repo_digests=[each for each in image.names if "@" in each],
            size=image.size_bytes,
            pinned=image.pinned,
        )
        shown.uid.value = self._images.user(image)
        return shown
