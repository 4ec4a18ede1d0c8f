"""Where in a YAML text a part of a document stands."""

from collections.abc import Sequence

import yaml


def line_of(text: str, path: Sequence[int | str]) -> int:
    """Return the line, from 1, of what a path leads to: of its key, or as far as there is any."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = node.start_mark.line if node is not None else 0
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == part]
            if not found:
                break
            key, node = found[-1]
            line = key.start_mark.line
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            if part >= len(node.value):
                break
            node = node.value[part]
            line = node.start_mark.line
        else:
            break
    return int(line) + 1
