"""The Nodes of others that this process serves: their numbers, and what those of one size share."""

import heapq
from collections.abc import Callable
from typing import NamedTuple

from fleet.k8s.effects import NodeId
from fleet.profile.node_model import NodeModel, Resources, managed_model


class ManagedNode(NamedTuple):
    """One Node that is served here."""

    slot: int  # the index of a node: its address, and where its server is
    uid: str
    node: NodeId


class ManagedNodes:
    """The books of `--manage`. At most `nodes_max` are served at a time."""

    def __init__(self, nodes_max: int) -> None:
        self.on_lost: Callable[[str, str, str], None] | None = None
        """Takes name and uid of a Node that another kubelet serves by now, and how that showed."""
        self._nodes_max = nodes_max
        self.by_name: dict[str, ManagedNode] = {}  # only `add` and `remove` change it
        self._names: dict[int, str] = {}  # by index
        self._free: list[int] = []  # a heap of indices that were used before
        self._models: dict[tuple[int, Resources], NodeModel] = {}

    @property
    def is_full(self) -> bool:
        return len(self.by_name) >= self._nodes_max

    @property
    def next_index(self) -> int:
        """Return the index that the next Node gets: the lowest that is free."""
        return self._free[0] if self._free else len(self.by_name)

    def add(self, name: str, uid: str, node: NodeId) -> None:
        assert name not in self.by_name, name
        assert not self.is_full, name
        index = heapq.heappop(self._free) if self._free else len(self.by_name)
        self.by_name[name] = ManagedNode(index, uid, node)
        self._names[index] = name

    def remove(self, name: str) -> NodeId:
        """Note that a Node is served no more; return the number of its kubelet."""
        gone = self.by_name.pop(name)
        del self._names[gone.slot]
        heapq.heappush(self._free, gone.slot)
        return gone.node

    def at(self, index: int) -> tuple[NodeId, str] | None:
        """Return number and name of the node with an index. From any thread."""
        name = self._names.get(index)
        found = self.by_name.get(name) if name is not None else None
        return None if found is None or name is None else (found.node, name)

    def model_of(self, model: NodeModel, found: Resources) -> NodeModel:
        """Return the model of the Nodes of one size: as many as there are machine types."""
        key = (id(model), found)
        if key not in self._models:
            self._models[key] = managed_model(model, found)
        return self._models[key]
