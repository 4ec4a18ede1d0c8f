"""Settings and node profiles: the one door to everything that users configure."""

from fleet.command import Outcome, outcome_of_command
from fleet.distribution import Distribution
from fleet.node_model import NodeFacts, NodeImage, NodeModel, RuntimeHandler, cap_version
from fleet.pod_behavior import ContainerBehavior, PodBehavior
from fleet.quantity import Quantity, format_duration, parse_duration, parse_quantity
from fleet.settings import Fidelity, IdentityMode, OutputFormat, ProfileChoice, Settings

__all__ = [
    "ContainerBehavior",
    "Distribution",
    "Fidelity",
    "IdentityMode",
    "NodeFacts",
    "NodeImage",
    "NodeModel",
    "Outcome",
    "OutputFormat",
    "PodBehavior",
    "ProfileChoice",
    "Quantity",
    "RuntimeHandler",
    "Settings",
    "cap_version",
    "format_duration",
    "outcome_of_command",
    "parse_duration",
    "parse_quantity",
]
