"""Settings and node profiles: the one door to everything that users configure.

What is behind it: `settings` (the options of `fleet spawn`), `loader` (documents, the mix of
profiles), `node_profile` and `pod_behavior` (what is written and what is compiled from it).
"""

from fleet.distribution import Distribution
from fleet.loader import (
    NodeMix,
    ProfileSummary,
    import_profile,
    json_schema,
    list_profiles,
    load_file,
    load_mix,
    load_source,
    parse_documents,
    shipped_directory,
    show_profile,
)
from fleet.node_model import (
    EvictionThreshold,
    NodeFacts,
    NodeImage,
    NodeModel,
    RuntimeHandler,
    cap_version,
    parse_version,
)
from fleet.node_profile import NodeProfile
from fleet.pod_behavior import ContainerBehavior, PodBehavior, PodBehaviorManifest
from fleet.quantity import Quantity, format_duration, parse_duration, parse_quantity
from fleet.settings import (
    Encoding,
    Fidelity,
    IdentityMode,
    OutputFormat,
    ProfileChoice,
    Settings,
    WatchMode,
)

__all__ = [
    "ContainerBehavior",
    "Distribution",
    "Encoding",
    "EvictionThreshold",
    "Fidelity",
    "IdentityMode",
    "NodeFacts",
    "NodeImage",
    "NodeMix",
    "NodeModel",
    "NodeProfile",
    "OutputFormat",
    "PodBehavior",
    "PodBehaviorManifest",
    "ProfileChoice",
    "ProfileSummary",
    "Quantity",
    "RuntimeHandler",
    "Settings",
    "WatchMode",
    "cap_version",
    "format_duration",
    "import_profile",
    "json_schema",
    "list_profiles",
    "load_file",
    "load_mix",
    "load_source",
    "parse_documents",
    "parse_duration",
    "parse_quantity",
    "parse_version",
    "shipped_directory",
    "show_profile",
]
