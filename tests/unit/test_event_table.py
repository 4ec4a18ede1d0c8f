"""docs/explain/fidelity.md names every reason that the code knows, once."""

import re
from pathlib import Path

from fleet.kubelet.events import Reason

DOCUMENT = Path(__file__).parents[2] / "docs" / "explain" / "fidelity.md"


def reasons() -> list[str]:
    table = DOCUMENT.read_text().partition("\n## Events\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return [found for row in rows for found in re.findall(r"`([A-Z]\w+)`", row)]


def test_every_reason_has_its_row() -> None:
    listed = reasons()
    assert len(listed) > 70
    assert {reason.text for reason in Reason} <= set(listed)
    assert {each for each in listed if listed.count(each) > 1} <= {"BackOff", "Failed"}
