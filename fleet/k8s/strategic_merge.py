"""Two-way strategic-merge patches: what a client sends that changed an object it had read.

A member that has gone is null, a list with a merge key carries the elements that differ and their
order, any other list is replaced. Values are JSON as the API shows it.
Source: apimachinery/pkg/util/strategicpatch/patch.go, CreateTwoWayMergePatch, diffMaps, diffLists.
"""

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]
MERGE_KEYS = {"conditions": "type", "hostIPs": "ip", "podIPs": "ip"}
"""Of the lists that kubelets change: the `patchMergeKey` of their fields in core/v1."""


def two_way_patch(old: Json, new: Json) -> Json:
    """Return the patch that makes an object into another one."""
    found: Json = {}
    for name in {**old, **new}:
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if before and after and name in MERGE_KEYS:
            found |= _list_patch(name, before, after)
        elif isinstance(before, dict) and isinstance(after, dict):
            found[name] = two_way_patch(before, after)
        else:
            found[name] = after
    return found


def _list_patch(name: str, before: Iterable[Json], after: Iterable[Json]) -> Json:
    key = MERGE_KEYS[name]
    left = {each[key]: each for each in before}
    changes = []
    for each in after:
        was = left.pop(each[key], None)
        if was is None:
            changes.append(each)
        elif was != each:
            changes.append({**two_way_patch(was, each), key: each[key]})
    changes += [{"$patch": "delete", key: gone} for gone in left]
    found: Json = {f"$setElementOrder/{name}": [{key: each[key]} for each in after]}
    return {**found, name: changes} if changes else found
