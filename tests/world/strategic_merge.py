"""Strategic merge patches as far as kubelets send them.

Source: apimachinery/pkg/util/strategicpatch/patch.go, mergeMap.
"""

from typing import Any

Object = dict[str, Any]
MERGE_KEYS = {"conditions": "type", "addresses": "type", "hostIPs": "ip", "podIPs": "ip"}


def merge(old: object, patch: object, field: str = "") -> object:
    """Apply a strategic merge patch as far as kubelets use it."""
    if isinstance(patch, dict):
        merged = dict(old) if isinstance(old, dict) else {}
        orders = {k.partition("/")[2]: v for k, v in patch.items() if k.startswith("$setElement")}
        for key, value in patch.items():
            if key.startswith("$"):
                continue
            if value is None:
                merged.pop(key, None)
            else:
                merged[key] = merge(merged.get(key), value, key)
        for key, order in orders.items():
            merged[key] = _ordered(merged.get(key, []), order, MERGE_KEYS[key])
        return merged
    if isinstance(patch, list) and field in MERGE_KEYS:
        return _merge_list(old if isinstance(old, list) else [], patch, MERGE_KEYS[field])
    return patch


def _merge_list(old: list[Object], patch: list[Object], by: str) -> list[Object]:
    if any(change.get("$patch") == "replace" for change in patch):
        return [change for change in patch if "$patch" not in change]
    found = {each[by]: each for each in old}
    for change in patch:
        if change.get("$patch") == "delete":
            found.pop(change[by], None)
        else:
            merged = merge(found.get(change[by]), change)
            assert isinstance(merged, dict)
            found[change[by]] = merged
    return list(found.values())


def _ordered(items: list[Object], order: list[Object], by: str) -> list[Object]:
    places = {each[by]: at for at, each in enumerate(order)}
    return sorted(items, key=lambda each: places.get(each[by], len(places)))
