"""Image references: how registries, repositories, tags and digests are read and written out.

Source: github.com/distribution/reference v0.6.0, ParseNormalizedNamed, ParseDockerRef;
pkg/util/parsers/parsers.go, ParseImageName.
Differs: a digest is checked for its algorithm and length by one pattern.
"""

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

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
