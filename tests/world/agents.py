"""Agents of nodes, as a profile declares them."""

import yaml

from fleet.profile.agent_behavior import AgentModel, NodeAgent
from fleet.profile.loader import parse_documents
from fleet.profile.schema import API_VERSION


def agent_model(**spec: object) -> AgentModel:
    """Return the agent `a` of a specification, which may leave out who the agent is."""
    given = {"userAgent": "a/v1", "serviceAccount": "ns/a", **spec}
    head = {"apiVersion": API_VERSION, "kind": "NodeAgent", "metadata": {"name": "a"}}
    [agent] = parse_documents(yaml.safe_dump({**head, "spec": given}), "test")
    assert isinstance(agent, NodeAgent)
    return agent.compiled()
