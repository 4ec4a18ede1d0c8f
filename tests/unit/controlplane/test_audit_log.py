from pathlib import Path

import pytest

from fleet.controlplane.controlplane import _make_audit_log
from fleet.errors import SetupError


def test_an_audit_log_is_made_with_its_directory(tmp_path: Path) -> None:
    _make_audit_log(tmp_path / "new" / "audit.jsonl")
    assert (tmp_path / "new" / "audit.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    ("name", "words"), [("", "Is a directory"), ("file/audit.jsonl", "Not a directory|File exists")]
)
def test_one_that_cannot_be_written_is_named(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=f"--audit-log .*: ({words})"):
        _make_audit_log(tmp_path / name)
