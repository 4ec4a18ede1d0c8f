"""No secret stands in an error, a log line or a traceback."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from fleet import errors
from fleet.cli import MaskingFormatter
from fleet.errors import HIDDEN, SECRETS_MAX, SetupError, UsageError, hide, masked

JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6Ij.eyJpc3MiOiJrdWJlcm5ldGVz.c2lnbmF0dXJl"
ROOT = Path(errors.__file__).parent


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"no access with {JWT}.", f"no access with {HIDDEN}"),
        ("Authorization: Bearer abc.def-ghi", f"Authorization: Bearer {HIDDEN}"),
        ("Authorization: Basic dXNlcjpwYXNz", f"Authorization: Basic {HIDDEN}"),
        ("token abcdef.0123456789abcdef is used up", f"token {HIDDEN} is used up"),
        ("proxy http://me:secret@proxy:3128/", f"proxy http://{HIDDEN}@proxy:3128/"),
        ("got k8s-aws-v1.aHR0cHM6Ly9zdHM", f"got {HIDDEN}"),
        ("-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----", HIDDEN),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert str(SetupError(text)) == str(UsageError(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "run 20261122-120000-ab12 of fleet-emulator",
        "--confirm-cluster 5f0c1a3e-8f0d-4c55-9f0e-0f1d2c3b4a59",
        "pod kube-system/coredns-7db6d8ff4d-x2x9q on node fleet-0001-00017",
        "https://api.example:6443/apis/coordination.k8s.io/v1",
        "status.conditions[0].lastTransitionTime, server.authentication",
        "/var/lib/fleet/runs/20261122-120000-ab12/summary.json",
        "sha256:2ae1f3c4d5e6f708192a3b4c5d6e7f80",
    ],
)
def test_names_that_users_need_stay(text: str) -> None:
    assert masked(text) == text


def test_a_secret_of_this_process_is_hidden_whatever_it_looks_like() -> None:
    hide("correct horse battery")
    hide("short")
    assert masked("with correct horse battery, in short") == f"with {HIDDEN}, in short"
    for number in range(SECRETS_MAX):
        hide(f"a renewed token {number:04}")
    assert masked("correct horse battery") == "correct horse battery"  # it ran out long ago
    assert masked(f"a renewed token {SECRETS_MAX - 1:04}") == HIDDEN


def test_a_log_line_and_its_traceback_have_no_secret() -> None:
    try:
        int(f"Bearer {JWT}")
    except ValueError:
        record = logging.LogRecord("x", 40, "x", 1, "got %s", (JWT,), sys.exc_info())
    text = MaskingFormatter("%(message)s").format(record)
    assert JWT not in text
    assert "ValueError: invalid literal" in text


@pytest.mark.parametrize("how", ["bug", "log", "usage"])
def test_the_command_line_prints_no_secret(how: str) -> None:
    does = {
        "bug": f"raise RuntimeError('with {JWT}')",
        "log": f"__import__('logging').getLogger('x').warning('with %s', '{JWT}')",
        "usage": f"raise __import__('click').UsageError('with {JWT}')",
    }[how]
    code = f"from fleet import cli\ndef act(**_):\n    {does}\ncli.cli.main = act\ncli.main()"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert f"with {HIDDEN}" in ended.stderr
    assert JWT not in ended.stdout + ended.stderr


def test_other_programs_start_without_the_secrets_of_this_process() -> None:
    for path in ROOT.rglob("*.py"):
        # build.py starts Go's compiler, before a run has any token.
        assert "{**os.environ" not in path.read_text() or path.name == "build.py", path
