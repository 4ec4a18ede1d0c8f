"""Files of variables that init containers write for others: `fileKeyRef`."""

_BLANK = " \t"


def env_file_value(text: str, key: str) -> str | None:  # noqa: PLR0911 - one for each fault of a line
    """Return the value of a key, "" if the file has none, None if a line cannot be parsed.

    Values stand in single quotes, over several lines if need be; what follows the key is not read.
    Source: pkg/kubelet/util/env/env_util.go, ParseEnv.
    """
    lines = iter(text.replace("\r\n", "\n").removesuffix("\n").split("\n"))
    for raw in lines:
        line = raw.lstrip(_BLANK)
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals or not name or name != name.rstrip(_BLANK):
            return None
        if value.startswith(tuple(_BLANK)):
            if name == key:
                return ""
            continue
        if not value.startswith("'"):
            return None
        found, quote, rest = value[1:].partition("'")
        while not quote:
            following = next(lines, None)
            if following is None:
                return None
            more, quote, rest = following.partition("'")
            found += f"\n{more}"
        if rest.lstrip(_BLANK) and not rest.lstrip(_BLANK).startswith("#"):
            return None
        if name == key:
            return found
    return ""
