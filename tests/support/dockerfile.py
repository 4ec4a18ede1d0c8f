"""Reads a Dockerfile, so that a test takes its steps and no others."""

import dataclasses
import re
import shlex
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """What stands between one FROM and the next, instruction by instruction."""

    instructions: tuple[tuple[str, str], ...]

    def all(self, name: str) -> list[str]:
        return [arguments for each, arguments in self.instructions if each == name]

    def last(self, name: str) -> str:
        return self.all(name)[-1]

    def environment(self) -> dict[str, str]:
        pairs = (pair.partition("=") for line in self.all("ENV") for pair in shlex.split(line))
        return {name: value for name, _, value in pairs}


def stages(path: Path) -> list[Stage]:
    """Return the stages; comments and what stands before the first FROM are left out."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found: list[list[tuple[str, str]]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, arguments = line.partition(" ")
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, arguments))
    return [Stage(tuple(each)) for each in found]
