"""What the words of a shell script become: variables, arithmetic, `test` and `expr`.

Source: POSIX.1-2024, Shell & Utilities: 2.6 Word Expansions, test, expr.
Differs: a pattern (`*`, `?`) is not matched against files; a word that has one is unknown, but for
a URL, of which no file has the name: it stays as it is.
"""

import ast
import operator
import re
from collections.abc import Callable, Sequence

from .budget import Budget, check_nesting
from .syntax import UnknownScriptError, expansion_end, quoted_end

_PARAMETER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[?#@*$!0-9])(?:(:?-)(.*))?", re.DOTALL)
_NUMBER = re.compile(r"[-+]?[0-9]{1,18}")
_ARITHMETIC_MAX = 256
WORD_UNITS = 150
"""What a word costs that is expanded."""
RAW_UNITS = 6
"""What a character costs that is looked at for quotes and dollar signs."""
FIELD_UNITS = 16
"""What a field costs beside its characters."""
_DOUBLE_ESCAPES = frozenset('$`"\\\n')
_UNKNOWN = frozenset("*?`")
"""Patterns, and commands in backquotes."""

Lookup = Callable[[str], str]
"""Return the value of a variable, "" when it is not set. May raise UnknownScriptError."""


def expand_word(
    raw: str, lookup: Lookup, substitute: Callable[[str], str], budget: Budget
) -> list[str]:
    """Return the fields that a raw word becomes; `substitute` runs a `$(...)`.

    Raises UnknownScriptError, OverBudgetError.
    """
    budget.spend(WORD_UNITS + RAW_UNITS * len(raw))
    with budget:
        return _expanded(raw, lookup, substitute, budget)


def _expanded(
    raw: str, lookup: Lookup, substitute: Callable[[str], str], budget: Budget
) -> list[str]:
    fields: list[str] = []
    current = ""
    is_open = False  # whether there is a field, even if it is empty
    at = 0
    while at < len(raw):
        char = raw[at]
        if char == "'":
            end = raw.find("'", at + 1)
            if end < 0:
                raise UnknownScriptError(raw)
            current += raw[at + 1 : end]
            is_open, at = True, end + 1
        elif char == '"':
            text, at = _double_quoted(raw, at, lookup, substitute, budget)
            current += text
            is_open = True
        elif char == "$":
            end = expansion_end(raw, at)
            head, *more = re.split(r"\s+", _expand(raw[at:end], lookup, substitute, budget))
            budget.spend(FIELD_UNITS * len(more))
            for text in more:
                if is_open or current or head:
                    fields.append(current + head)
                current, head, is_open = "", text, False
            current += head
            at = end
        elif char == "\\":
            current += raw[at + 1 : at + 2].replace("\n", "")
            is_open, at = True, at + 2
        elif char in _UNKNOWN and (char == "`" or "://" not in raw[:at]):
            raise UnknownScriptError(raw)
        else:
            current += char
            at += 1
    return [*fields, current] if is_open or current else fields


def expand_text(raw: str, lookup: Lookup, substitute: Callable[[str], str], budget: Budget) -> str:
    """Return the one string that a raw word becomes where fields are not split."""
    return " ".join(expand_word(raw, lookup, substitute, budget))


def _double_quoted(
    raw: str, at: int, lookup: Lookup, substitute: Callable[[str], str], budget: Budget
) -> tuple[str, int]:
    """Return what a quoted string becomes, and where the text behind it starts."""
    quoted_end(raw, at)  # or it is unknown
    text = ""
    at += 1
    while raw[at] != '"':
        if raw[at] == "$":
            end = expansion_end(raw, at)
            text += _expand(raw[at:end], lookup, substitute, budget)
            at = end
        elif raw[at] == "\\" and raw[at + 1] in _DOUBLE_ESCAPES:
            text += raw[at + 1].replace("\n", "")
            at += 2
        else:
            text += raw[at]
            at += 1
    return text, at + 1


def _expand(raw: str, lookup: Lookup, substitute: Callable[[str], str], budget: Budget) -> str:
    """Return the value of `$NAME`, `${NAME:-default}`, `$((...))` or `$(...)`."""
    text = _value_of(raw, lookup, substitute, budget)
    budget.spend(len(text))
    return text


def _value_of(raw: str, lookup: Lookup, substitute: Callable[[str], str], budget: Budget) -> str:
    if raw.startswith("$((") and raw.endswith("))"):
        return str(arithmetic(raw[3:-2], lookup))
    if raw.startswith("$("):
        return substitute(raw[2:-1]).rstrip("\n")
    inner = raw[2:-1] if raw.startswith("${") else raw[1:]
    if not inner:
        return "$"
    match = _PARAMETER.fullmatch(inner)
    if match is None:
        raise UnknownScriptError(raw)
    value = lookup(match[1])
    if not value and match[2]:
        return expand_text(match[3], lookup, substitute, budget)
    return value


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def arithmetic(text: str, lookup: Lookup) -> int:
    """Return the value of an arithmetic expression: C's operators on integers and variables."""
    if "$?" in text:
        text = text.replace("$?", lookup("?"))
    text = text.replace("${", " ").replace("}", " ").replace("$", " ").strip() or "0"
    text = text.replace("&&", " and ").replace("||", " or ")
    if len(text) > _ARITHMETIC_MAX:
        raise UnknownScriptError(text)
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # of Python's parser
        raise UnknownScriptError(text) from error
    return _value(tree.body, lookup)


def _value(node: ast.expr, lookup: Lookup, depth: int = 0) -> int:
    check_nesting(depth)
    depth += 1
    match node:
        case ast.Constant(value=int(number)):
            return int(number)
        case ast.Name(id=name):
            return _number(lookup(name) or "0")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, lookup, depth)
        case ast.BinOp(left=left, op=op, right=right):
            return _binary(type(op), _value(left, lookup, depth), _value(right, lookup, depth))
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARE:
            compare = _COMPARE[type(op)]
            return int(compare(_value(left, lookup, depth), _value(right, lookup, depth)))
        case ast.BoolOp(op=op, values=values):
            results = [_value(each, lookup, depth) for each in values]
            return int(all(results) if isinstance(op, ast.And) else any(results))
        case _:
            raise UnknownScriptError(type(node).__name__)


def _binary(op: type[ast.operator], left: int, right: int) -> int:
    if op in _BINARY:
        return _BINARY[op](left, right)
    if op not in {ast.Div, ast.Mod} or not right:
        raise UnknownScriptError(op.__name__)
    quotient = abs(left) // abs(right)
    if (left < 0) != (right < 0):
        quotient = -quotient
    return quotient if op is ast.Div else left - quotient * right


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise UnknownScriptError(text)
    return int(text)


_EXPR = frozenset(("+", "-", "*", "/", "%", "(", ")", "<", "<=", ">", ">="))


def evaluate_expr(words: Sequence[str]) -> tuple[str, int]:
    """Return what `expr` prints and its exit code."""
    if len(words) == 3 and words[1] in {"=", "!="}:
        result = str(int((words[0] == words[2]) == (words[1] == "=")))
    elif all(_NUMBER.fullmatch(each) or each in _EXPR for each in words):
        result = str(arithmetic(" ".join(words), lambda _name: ""))
    else:
        raise UnknownScriptError("expr")
    return result, int(result in {"", "0"})


_NUMERIC: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_ON_FILES = frozenset(("-d", "-e", "-f", "-r", "-s", "-w", "-x"))


def evaluate_test(words: Sequence[str], read: Callable[[str], str | None]) -> bool:
    """Return what `test` finds; `read` returns the text of a file, None when there is none.

    A directory is a file whose text is "/".
    """
    for connector, combine in (("||", any), ("-o", any), ("&&", all), ("-a", all)):
        if len(words) > 3 and connector in words:
            return combine(evaluate_test(part, read) for part in _split(words, connector))
    negations = 0
    while negations < len(words) and words[negations] == "!":
        negations += 1
    if negations:
        return evaluate_test(words[negations:], read) == (negations % 2 == 0)
    if len(words) <= 1:
        return bool(words and words[0])
    if len(words) == 2:
        return _unary(words[0], words[1], read)
    if len(words) == 3:
        return _compare(*words)
    raise UnknownScriptError(" ".join(words))


def _unary(option: str, operand: str, read: Callable[[str], str | None]) -> bool:
    if option in {"-z", "-n"}:
        return bool(operand) == (option == "-n")
    if option not in _ON_FILES:
        raise UnknownScriptError(option)
    return _test_file(option, read(operand))


def _compare(left: str, option: str, right: str) -> bool:
    if option in {"=", "==", "!="}:
        return (left == right) == (option != "!=")
    if option not in _NUMERIC:
        raise UnknownScriptError(option)
    return _NUMERIC[option](_number(left), _number(right))


def _test_file(option: str, text: str | None) -> bool:
    if text is None:
        return False
    if option == "-d":
        return text == "/"
    return text != "/" if option == "-f" else option != "-s" or bool(text)


def _split(words: Sequence[str], connector: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == connector:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts
