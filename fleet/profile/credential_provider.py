"""Image credential providers that work with tokens of service accounts, declared in a NodeProfile.

The keys are those of a kubelet's CredentialProviderConfig. Only what the API server sees of a
provider is emulated: the ServiceAccount that is read, and the token that is asked for.
Source: pkg/kubelet/apis/config/types.go, CredentialProvider, ServiceAccountTokenAttributes.
"""

from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field

from fleet.profile.schema import Spec

Keys = tuple[Annotated[str, Field(min_length=1)], ...]


class TokenAttributes(Spec):
    """Which token a provider is given."""

    service_account_token_audience: Annotated[str, Field(min_length=1)]
    cache_type: Literal["ServiceAccount", "Token"] = "Token"
    require_service_account: bool = True
    required_service_account_annotation_keys: Keys = ()
    optional_service_account_annotation_keys: Keys = ()


class CredentialProvider(Spec):
    """A plug-in that a kubelet asks for credentials before it pulls an image."""

    name: Annotated[str, Field(min_length=1)]
    match_images: Annotated[Keys, Field(min_length=1)]
    token_attributes: TokenAttributes

    def matches(self, image: str) -> bool:
        """Return whether the provider is asked about an image, by its full name.

        Source: pkg/credentialprovider/keyring.go, URLsMatch.
        """
        return any(_matches(each, image) for each in self.match_images)


def _matches(pattern: str, image: str) -> bool:
    host, _, path = image.partition("/")
    wanted_host, slash, wanted_path = pattern.partition("/")
    name, _, port = host.partition(":")
    wanted_name, _, wanted_port = wanted_host.partition(":")
    parts, wanted_parts = name.split("."), wanted_name.split(".")
    if port != wanted_port or len(parts) != len(wanted_parts):
        return False
    if slash and not path.startswith(wanted_path):
        return False
    return all(map(fnmatchcase, parts, wanted_parts))
