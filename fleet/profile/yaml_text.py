"""Read YAML of users, pods and servers within limits; the only way in which fleet reads YAML.

PyYAML shares what an alias repeats, but a walk over the value walks every repetition: nine lines
of aliases make a billion items. Nested brackets exhaust Python's stack, and a number in base 60 of
a megabyte takes minutes. All of these are refused while the text is composed, before a value is
built. An error says where and what is wrong, but never quotes the text: the file may be a secret.

Source: go.yaml.in/yaml/v3, decode.go, allowedAliasRatio, and yaml/v2, limit.go, max_depth.
Differs: the limit is on what aliases repeat, in characters, and lower.
"""

import contextlib
import re
from collections.abc import Iterator

import yaml
from yaml.events import AliasEvent, Event, NodeEvent
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

NESTING_MAX = 100
REPEATED_MAX = 4 << 20
"""Characters that the aliases of one text may repeat in all: as many as a long profile has."""
NUMBER_CHARACTERS_MAX = 100
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MERGE = "tag:yaml.org,2002:merge"
_QUOTED_TEXT = re.compile(r" ?'(?!<)[^']{2,}'")
"""What PyYAML quotes of the text; the names of its own tokens are in angle brackets."""
# PyYAML's constructors assume that a tag fits its text: `!!int ""`, `!!bool x`, `2001-99-99`.
_MISFITS = (ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError)


class YAMLTextError(ValueError):
    """A text that is not YAML, or exceeds a limit; quotes nothing of it."""

    def __init__(self, problem: str, line: int = 0, column: int = 0) -> None:
        where = f"line {line}, column {column}: " if line else ""
        super().__init__(f"{where}{problem}")
        self.problem = problem
        self.line = line
        self.where = f":{line}:{column}" if line else ""
        """As it follows the name of a file."""


def read_documents(text: str | bytes) -> list[object]:
    """Return the documents of a text, empty ones as None. Raises YAMLTextError."""
    with _without_quotes():
        return list(yaml.load_all(text, _BoundedLoader))


def read_document(text: str | bytes) -> object:
    """Return the one document of a text. Raises YAMLTextError."""
    with _without_quotes():
        return yaml.load(text, _BoundedLoader)  # noqa: S506 - a SafeLoader


def read_annotation(text: str) -> object:
    """Return what an annotation says: YAML without anchors, aliases and `<<`.

    Raises YAMLTextError.
    """
    with _without_quotes():
        return yaml.load(text, _PlainLoader)  # noqa: S506 - a SafeLoader


class _BoundedLoader(yaml.SafeLoader):
    """Composes nodes within the limits at the top of this file."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._nesting = 0
        self._repeated = 0
        self._sizes: dict[int, int] = {}
        """Characters of each finished node by its id, with all that its aliases repeat."""

    def compose_document(self) -> Node | None:
        """Compose one document; the ids of an earlier one's nodes may be used again."""
        self._sizes.clear()
        return super().compose_document()

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """Compose one node, and measure it."""
        event: Event = self.peek_event()  # type: ignore[no-untyped-call]
        self.check_event_limits(event)
        self._nesting += 1
        if self._nesting > NESTING_MAX:
            raise _refused(event, f"is nested over {NESTING_MAX} levels deep")
        node = super().compose_node(parent, index)
        self._nesting -= 1
        if isinstance(event, AliasEvent):
            if id(node) not in self._sizes:
                raise _refused(event, "an alias stands inside what it repeats")
            self._repeated += self._sizes[id(node)]
            if self._repeated > REPEATED_MAX:
                raise _refused(event, f"aliases repeat over {REPEATED_MAX >> 20} MiB")
        elif node is not None:
            self._sizes[id(node)] = self._size(node)
        return node

    def check_event_limits(self, event: Event) -> None:
        """Raise a YAMLError for an event that this kind of text may not have."""

    def _size(self, node: Node) -> int:
        if isinstance(node, ScalarNode):
            size = 1 + len(node.value)
            if node.tag in _NUMBERS and size > NUMBER_CHARACTERS_MAX:
                raise _refused(node, f"a number has over {NUMBER_CHARACTERS_MAX} characters")
            return size
        assert isinstance(node, CollectionNode), node
        if isinstance(node, MappingNode):
            pairs = node.value
            return 1 + sum(self._sizes[id(key)] + self._sizes[id(value)] for key, value in pairs)
        return 1 + sum(self._sizes[id(each)] for each in node.value)


class _PlainLoader(_BoundedLoader):
    """Takes no anchors, aliases and merge keys: an annotation has no use for them."""

    def check_event_limits(self, event: Event) -> None:
        """Raise a YAMLError for an anchor or an alias."""
        if isinstance(event, NodeEvent) and event.anchor is not None:
            raise _refused(event, "an annotation has no anchors or aliases")

    def _size(self, node: Node) -> int:
        if node.tag == _MERGE:
            raise _refused(node, "an annotation has no merge key <<")
        return super()._size(node)


def _refused(at: Event | Node, problem: str) -> yaml.MarkedYAMLError:
    mark = at.start_mark
    assert mark is None or isinstance(mark, yaml.Mark), mark
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


@contextlib.contextmanager
def _without_quotes() -> Iterator[None]:
    """Raise what PyYAML raises as YAMLTextError."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = _QUOTED_TEXT.sub("", error.problem or error.context or "cannot be parsed")
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
        raise YAMLTextError(problem, line, column) from None
    except yaml.YAMLError as error:  # of the reader: a character or bytes that no YAML has
        raise YAMLTextError(str(error).partition("\n")[0]) from None
    except _MISFITS:
        raise YAMLTextError("a value does not fit its type") from None
