"""How the images of pods are named and pulled: sizes, times, failures; a registry's answers.

Two documents decide: a NodeProfile has the speed of its registry (`imagePulls`), a PodBehavior or
a pod's annotations have what is special about one image. An image of which nobody says how large
it is has a size that follows from its name.
Source: github.com/distribution/reference v0.6.0, ParseNormalizedNamed, ParseDockerRef;
pkg/util/parsers/parsers.go, ParseImageName.
Differs: the digest of a reference is checked for its algorithm and length by one pattern.
"""

import enum
import hashlib
import re
import tomllib
import zlib
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, Field

from fleet.clock import NS_PER_S
from fleet.profile.distribution import DistributionField, constant
from fleet.profile.schema import QuantityField, Spec
from fleet.quantity import parse_quantity

DEFAULT_DOMAIN = "docker.io"
DEFAULT_TAG = "latest"
PATH_MAX = 255

_DOMAIN_PART = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_HOST = rf"(?:{_DOMAIN_PART}(?:\.{_DOMAIN_PART})*|\[(?:[a-fA-F0-9:]+)\])"
_PATH_PART = r"[a-z0-9]+(?:(?:[._]|__|[-]+)[a-z0-9]+)*"
_NAME = rf"(?:{_HOST}(?::[0-9]+)?/)?{_PATH_PART}(?:/{_PATH_PART})*"
_TAG = r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,127}"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_REFERENCE = re.compile(rf"({_NAME})(?::({_TAG}))?(?:@({_DIGEST}))?")
_IDENTIFIER = re.compile(r"[a-f0-9]{64}")
_DIGEST_LENGTHS = {"sha256": 64, "sha384": 96, "sha512": 128}
_HEX = re.compile(r"[a-f0-9]*")


class ImageReference(NamedTuple):
    """A reference that can be pulled; `error` says why one cannot, and the rest is empty."""

    domain: str = ""
    path: str = ""
    tag: str = ""  # "" when there is none: then it is `latest`, unless there is a digest
    digest: str = ""  # "sha256:..."
    error: str = ""

    @property
    def repository(self) -> str:
        """Return the name without tag and digest."""
        return f"{self.domain}/{self.path}"

    @property
    def full_name(self) -> str:
        """Return how containerd spells it: with a digest, else with a tag."""
        if self.digest:
            return f"{self.repository}@{self.digest}"
        return f"{self.repository}:{self.tag or DEFAULT_TAG}"


@lru_cache(maxsize=4096)
def parse_image(image: str) -> ImageReference:
    """Read a reference as Docker does. Source: normalize.go, ParseNormalizedNamed."""
    if _IDENTIFIER.fullmatch(image):
        return _invalid(
            f"invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
        )
    domain, rest = _split_domain(image)
    remote = rest.partition(":")[0]
    if remote.lower() != remote:
        return _invalid(f"invalid reference format: repository name ({remote}) must be lowercase")
    found = _REFERENCE.fullmatch(f"{domain}/{rest}")
    if found is None:
        if _REFERENCE.fullmatch(f"{domain}/{rest}".lower()):
            return _invalid("repository name must be lowercase")
        return _invalid("invalid reference format")
    name, tag, digest = found[1], found[2] or "", found[3] or ""
    path = name.removeprefix(f"{domain}/")
    if len(path) > PATH_MAX:
        return _invalid(f"repository name must not be more than {PATH_MAX} characters")
    error = _digest_error(digest)
    return _invalid(error) if error else ImageReference(domain, path, tag, digest)


@lru_cache(maxsize=4096)
def digest_name(full_name: str) -> str:
    """Return the name by digest of an image, made up where it has a tag: the same on every node."""
    if "@" in full_name:
        return full_name
    repository = full_name.rpartition(":")[0]
    return f"{repository}@sha256:{hashlib.sha256(full_name.encode()).hexdigest()}"


def _split_domain(image: str) -> tuple[str, str]:
    """Source: normalize.go, splitDockerDomain."""
    first, slash, rest = image.partition("/")
    if not slash:
        return DEFAULT_DOMAIN, f"library/{image}"
    if first == f"index.{DEFAULT_DOMAIN}":
        first = DEFAULT_DOMAIN
    elif first != "localhost" and "." not in first and ":" not in first and first.lower() == first:
        return DEFAULT_DOMAIN, image
    if first == DEFAULT_DOMAIN and "/" not in rest:
        rest = f"library/{rest}"
    return first, rest


def _digest_error(digest: str) -> str:
    """Source: github.com/opencontainers/go-digest v1.0.0, Validate."""
    if not digest:
        return ""
    algorithm, _, encoded = digest.partition(":")
    length = _DIGEST_LENGTHS.get(algorithm)
    if length is None:
        return "unsupported digest algorithm"
    if len(encoded) != length:
        return "invalid checksum digest length"
    return "" if _HEX.fullmatch(encoded) else "invalid checksum digest format"


def _invalid(error: str) -> ImageReference:
    return ImageReference(error=error)


SIZE_MIN = 5_000_000
SIZE_RATIO = 100  # images of unknown size have 5 MB to 500 MB, evenly on a logarithmic scale
LATENCY = constant(5_000_000)
"""Until the manifest is read, where a profile declares nothing: a registry next door."""
BANDWIDTH = 20_000_000_000
"""Bytes per second, where a profile declares nothing: so that pods start as if images were there.
"""
TIMEOUT_NS = 30 * NS_PER_S  # containerd's time-out of a dial


class PullError(enum.Enum):
    """What goes wrong with a pull."""

    NOT_FOUND = "NotFound"  # the repository has no such tag
    UNAUTHORIZED = "Unauthorized"  # the image is private: only pods with a pull secret get it
    RATE_LIMITED = "RateLimited"
    TIMEOUT = "Timeout"  # the registry cannot be reached
    REGISTRY_UNAVAILABLE = "RegistryUnavailable"
    SIGNATURE_INVALID = "SignatureValidationFailed"
    NO_MATCHING_PLATFORM = "NoMatchingPlatform"


def _bytes(value: object) -> int:
    return parse_quantity(value).value


class ImageBehavior(Spec):
    """What is special about the images of some containers.

    A size of 0: as the name says; no pull time: size through bandwidth.
    """

    size_bytes: Annotated[
        int, BeforeValidator(_bytes, json_schema_input_type=QuantityField), Field(alias="size")
    ] = 0
    pull_time: DistributionField | None = None
    error: Annotated[PullError | None, Field(alias="pullError")] = None
    error_rate: Annotated[float, Field(gt=0, le=1, alias="pullErrorRate")] = 1.0

    def failing(self, error: PullError) -> "ImageBehavior":
        """Return this where each pull fails."""
        return self.model_copy(update={"error": error, "error_rate": 1.0})


DEFAULT_IMAGE = ImageBehavior()


def _bandwidth(value: object) -> int:
    return max(_bytes(value), 1)


class ImagePulls(Spec):
    """The registry and the network of a kind of node.

    `not_found` are patterns of whole names, such as `docker.io/library/*:404`.
    """

    bandwidth: Annotated[int, BeforeValidator(_bandwidth, json_schema_input_type=QuantityField)] = (
        BANDWIDTH  # bytes per second
    )
    latency: DistributionField = LATENCY
    not_found: tuple[str, ...] = ()  # images that no registry has; * and ? as in a shell

    @property
    def is_declared(self) -> bool:
        """Whether anything is; where nothing is the kubelet's limit of pulls has no effect.

        Its 5 per second are meant for pulls that take their time; with pulls of some milliseconds
        a node would fail at what a real one never tries.
        """
        return not self.model_fields_set.isdisjoint(("bandwidth", "latency"))

    def found(
        self, image: ImageBehavior, full_name: str, *, is_broken: bool = False
    ) -> ImageBehavior:
        """Return what is special about an image, now that the registry was asked for it."""
        if is_broken:
            return image.failing(PullError.REGISTRY_UNAVAILABLE)
        if image.error is None and any(fnmatchcase(full_name, each) for each in self.not_found):
            return image.failing(PullError.NOT_FOUND)
        return image

    def duration_ns(self, image: ImageBehavior, size_bytes: int, u: float) -> int:
        """Return how long it takes to pull so many bytes; 0 bytes: only to ask the registry."""
        if image.error is PullError.TIMEOUT:
            return TIMEOUT_NS
        if image.pull_time is not None and size_bytes:
            return image.pull_time.sample(u)
        return self.latency.sample(u) + size_bytes * NS_PER_S // self.bandwidth


DEFAULT_PULLS = ImagePulls()


def default_size(full_name: str) -> int:
    """Return the size in bytes of an image of which only the name is known."""
    share = zlib.crc32(full_name.encode()) / 2**32
    return int(SIZE_MIN * SIZE_RATIO**share)


@cache
def _pull_errors() -> dict[str, str]:
    """Read the templates of the texts."""
    return tomllib.loads(Path(__file__).with_name("pull_errors.toml").read_text(encoding="utf-8"))


def pull_error_text(error: PullError, reference: ImageReference) -> str:
    """Return what the CRI answers when a pull fails, as the kubelet prints it."""
    name = reference.full_name
    host = reference.domain
    if host == DEFAULT_DOMAIN:
        host = f"registry-1.{DEFAULT_DOMAIN}"
    url = f"https://{host}/v2/{reference.path}/manifests/{reference.digest or reference.tag}"
    failed = f'failed to pull and unpack image "{name}": '
    unresolved = f'{failed}failed to resolve reference "{name}": '
    texts = {"name": name, "url": url, "failed": failed, "unresolved": unresolved}
    return _pull_errors()[error.value].format(**texts)
