"""What selectors and tolerations mean: requirements on labels, terms of nodes, taints.

Source: apimachinery/pkg/labels/selector.go, Requirement.Matches;
component-helpers/scheduling/corev1/nodeaffinity, NodeSelector.Match; core/v1/toleration.go.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from fleet.k8s.schema import Record, Text


def holds(labels: Mapping[str, str], key: str, operator: str, values: Collection[str]) -> bool:
    """Return whether labels meet one requirement; what is no number is neither above nor below."""
    value = labels.get(key)
    if operator in {"In", "NotIn"}:
        return (value in values) == (operator == "In")
    if operator in {"Exists", "DoesNotExist"}:
        return (value is not None) == (operator == "Exists")
    try:
        has, (limit,) = int(value or ""), map(int, values)
    except ValueError:
        return False
    return has > limit if operator == "Gt" else operator == "Lt" and has < limit


class NodeRequirement(NamedTuple):
    """Source: core/v1 NodeSelectorRequirement."""

    key: str
    operator: str
    values: tuple[str, ...]
    is_field: bool = False  # of matchFields, where only metadata.name exists

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node is as required."""
        found = {"metadata.name": name} if self.is_field else labels
        return holds(found, self.key, self.operator, self.values)


NodeTerms = tuple[tuple[NodeRequirement, ...], ...]
"""Alternatives; the requirements of one must all hold, and an empty one selects no node."""


def node_terms(required: dict[str, Any]) -> NodeTerms:
    """Return the terms of a NodeSelector."""
    return tuple(
        tuple(
            NodeRequirement(
                each.get("key", ""),
                each.get("operator", ""),
                tuple(map(str, each.get("values") or ())),
                is_field,
            )
            for member, is_field in (("matchExpressions", False), ("matchFields", True))
            for each in term.get(member) or ()
        )
        for term in required.get("nodeSelectorTerms") or ()
    )


def selects(terms: NodeTerms, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether a node is as all requirements of one term say."""
    return any(bool(term) and all(each.matches(name, labels) for each in term) for term in terms)


class Toleration(Record, frozen=True):
    """Source: core/v1 Toleration."""

    key: Text = ""
    operator: Text = "Equal"
    value: Text = ""
    effect: Text = ""

    def tolerates(self, key: str, value: str, effect: str) -> bool:
        """Return whether it covers a taint. Source: ToleratesTaint."""
        if self.effect not in {"", effect} or self.key not in {"", key}:
            return False
        return self.operator == "Exists" or (self.operator in {"", "Equal"} and self.value == value)
