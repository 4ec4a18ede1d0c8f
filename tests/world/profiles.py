"""Profiles and behaviours as files have them, read as fleet reads them."""

import pytest
import yaml

from fleet.errors import UsageError
from fleet.profile.loader import parse_documents
from fleet.profile.node_model import NodeModel
from fleet.profile.node_profile import NodeProfile
from fleet.profile.pod_behavior import PodBehavior, PodBehaviorManifest

FILE = "profiles/x.yaml"
HEAD = {"apiVersion": "fleet.emulator/v1alpha1", "kind": "NodeProfile", "metadata": {"name": "p"}}


def profile(**spec: object) -> NodeModel:
    """Return what a NodeProfile is compiled to."""
    (found,) = parse_documents(yaml.safe_dump({**HEAD, "spec": spec}), FILE)
    assert isinstance(found, NodeProfile)
    return found.compiled()


def refusal(**spec: object) -> str:
    """Return the one line by which a NodeProfile is refused, without the name of its file."""
    with pytest.raises(UsageError) as caught:
        profile(**spec)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{FILE}: ")


def behavior(spec: str, name: str = "b") -> PodBehavior:
    """Return what a PodBehavior is compiled to."""
    document = {**HEAD, "kind": "PodBehavior", "metadata": {"name": name}}
    (found,) = parse_documents(f"{yaml.safe_dump(document)}spec: {spec}", FILE)
    assert isinstance(found, PodBehaviorManifest)
    return found.compiled()
