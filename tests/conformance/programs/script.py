"""Which commands look at what is around them."""

import re

from .file_programs import FILE_PROGRAMS
from .process import SHELLS
from .programs import TEXT_PROGRAMS

LOOKERS = frozenset(("date", "env", "hostname", "id", "printenv", "pwd", "sysctl", "whoami"))
"""What these say follows from the pod, or from the instant."""
PROGRAMS = SHELLS | LOOKERS | {"echo", "exit", "sleep", "test"} | {*TEXT_PROGRAMS, *FILE_PROGRAMS}
"""Whatever else a container runs needs no variables and no files."""
LOOKS = re.compile(rf"[/$>]|\b(?:{'|'.join(sorted(LOOKERS | set(FILE_PROGRAMS)))})\b")
