"""A command that somebody runs in a container: input, output, ends, a terminal."""

import io
import re
import tarfile

import pytest
from programs.container_files import view
from programs.session import Session
from programs.surroundings import Surroundings

from fleet.clock import NS_PER_S
from fleet.runtime.files import NodeFiles

S = NS_PER_S
WALL_NS = 1_800_000_000 * S
FAR = 1 << 30
LAYER = ("uid", "/c")


class Pod:
    """A container with files of its own."""

    def __init__(self) -> None:
        self.files = NodeFiles()

    def run(self, *words: str, stdin: bool = False, tty: bool = False, at_s: int = 0) -> "Run":
        def around(given: bytes | None, *, is_trial: bool) -> Surroundings:  # noqa: ARG001
            system = {"/etc/hostname": "web\n"}
            files = view(self.files, (), {}, LAYER, at_s * S, system=system)
            variables = {"HOSTNAME": "web", "A": "1"}
            return Surroundings(
                variables,
                files,
                0.5,
                WALL_NS,
                is_whole=True,
                input=given,
            )

        return Run(self, Session(words, around, at_s * S, stdin=stdin, tty=tty), at_s)


class Run:
    def __init__(self, pod: Pod, session: Session, at_s: float) -> None:
        self.pod = pod
        self.session = session
        self.now_ns = int(at_s * S)
        self.out = b""
        self.err = b""
        self.error = ""
        self.code: int | None = None
        self.wake_ns: int | None = None

    def look(self, after_s: float = 0, limit: int = FAR) -> "Run":
        self.now_ns += int(after_s * S)
        for _ in range(1000):
            found = self.session.advance(limit, self.now_ns)
            changes, start_ns = self.session.changes, self.session.start_ns
            self.pod.files.record((), LAYER, start_ns, changes, "exec")
            assert len(found.stdout) + len(found.stderr) <= limit
            self.out += found.stdout
            self.err += found.stderr
            self.code, self.error, self.wake_ns = found.exit_code, found.error, found.wake_ns
            if not found.more:
                return self
        raise AssertionError("it always has more")

    def type(self, text: str | bytes) -> "Run":
        data = text.encode() if isinstance(text, str) else text
        assert self.session.write(data, self.now_ns) == len(data)
        return self.look()


def sh(script: str, pod: Pod | None = None) -> Run:
    return (pod or Pod()).run("sh", "-c", script).look()


@pytest.mark.parametrize(
    ("script", "out", "err", "code"),
    [
        ("echo hi; echo oops >&2; exit 3", "hi\n", "oops\n", 3),
        ("echo $A$HOSTNAME$NONE; pwd", "1web\n/\n", "", 0),
        ("foo", "", "sh: foo: not found\n", 127),
        ("foo 2>/dev/null || echo no", "no\n", "", 0),
        ("cat /none", "", "cat: can't open '/none': No such file or directory\n", 1),
        ("ls /none 2>&1 | wc -l", "1\n", "", 0),
        ("mkdir -p /a/b; echo x > /a/b/c; ls -R /a", "b\n\n/a/b:\nc\n", "", 0),
        ("cd /tmp && touch x && ls", "x\n", "", 0),
        ("cd /nowhere", "", "sh: cd: can't cd to /nowhere: No such file or directory\n", 2),
        ("echo one > /f; cp /f /g; mv /g /h; cat /f /h; ls /g", "one\none\n", None, 1),
        ("printf '%s-%d\\n' a 1 b 2", "a-1\nb-2\n", "", 0),
        ("echo -e 'a\\tb'; echo -n c", "a\tb\nc", "", 0),
        ("date +%Y-%m-%dT%H:%M:%S", "2027-01-15T08:00:00\n", "", 0),
        ("date", "Fri Jan 15 08:00:00 UTC 2027\n", "", 0),
        ("cat /etc/hostname; hostname; whoami; id -u", "web\nweb\nroot\n0\n", "", 0),
        ("env B=2 printenv B A", "2\n1\n", "", 0),
        ("wc -l < /etc/hostname", "1\n", "", 0),
        ("printf 'b\\na\\nb\\n' | sort | uniq -c", "      1 a\n      2 b\n", "", 0),
        ("printf '10\\n9\\n' | sort -n; seq 2 | sort -r", "9\n10\n2\n1\n", "", 0),
        ("printf abc | md5sum", "900150983cd24fb0d6963f7d28e17f72  -\n", "", 0),
        ("if", "", "sh: syntax error: not emulated\n", 2),
        ("sed s/a/b/ /etc/hostname", "", "sh: sed: not found\n", 127),
        ("grep -P '(' /etc/hostname", "", "grep: grep: not emulated\n", 2),
    ],
)
def test_scripts(script: str, out: str, err: str | None, code: int) -> None:
    done = sh(script)
    assert (done.out.decode(), done.code) == (out, code)
    if err is not None:
        assert done.err.decode() == err


def test_a_command_that_is_not_there_cannot_be_started() -> None:
    done = Pod().run("nginx", "-v").look()
    assert done.code == 127
    assert re.fullmatch(
        'failed to exec in container: failed to start exec "[0-9a-f]{64}": OCI runtime exec '
        "failed: exec failed: unable to start container process: exec: "
        r'"nginx": executable file not found in \$PATH: unknown',
        done.error,
    )
    pod = Pod()
    sh("echo x > /opt/tool", pod)
    done = pod.run("/opt/tool").look()
    assert (done.code, done.error.endswith('"/opt/tool": permission denied: unknown')) == (
        126,
        True,
    )
    assert (
        pod.run("/opt/none")
        .look()
        .error.endswith("stat /opt/none: no such file or directory: unknown")
    )


def test_output_comes_when_it_is_said() -> None:
    run = Pod().run("sh", "-c", "echo one; sleep 2; echo two; sleep 1; exit 4").look()
    assert (run.out, run.code, run.wake_ns) == (b"one\n", None, 2 * S)
    assert run.look(1.9).out == b"one\n"
    run.look(0.1)
    assert (run.out, run.code) == (b"one\ntwo\n", None)
    assert run.look(1).code == 4


def test_a_loop_goes_on_as_long_as_it_is_watched() -> None:
    run = Pod().run("sh", "-c", "while true; do echo x; sleep 1; done").look()
    for _ in range(5):
        run.look(1)
    assert run.out == b"x\n" * 6
    assert run.look(3000).out.count(b"\n") == 3006
    run.session.close(run.now_ns)
    assert run.look().code == 137


def test_input_is_read_when_it_is_complete() -> None:
    run = Pod().run("sh", "-c", "cat && echo closed", stdin=True).look()
    assert (run.code, run.wake_ns) == (None, None)
    assert run.type("abc\n").out == b""
    run.session.close_stdin(run.now_ns)
    run.look()
    assert (run.out, run.code) == (b"abc\nclosed\n", 0)
    assert Pod().run("wc", "-c").look().out == b"0\n"
    done = Pod().run("ls", "/etc", stdin=True).look()
    assert (done.out, done.code) == (b"hostname\n", 0)


def test_files_are_copied_both_ways() -> None:
    pod = Pod()
    data = bytes(range(256)) * 400
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, text in (("d/blob", data), ("d/../../escape", b"x")):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    run = pod.run("tar", "-xmf", "-", "-C", "/tmp", stdin=True).look()
    body = made.getvalue()
    for at in range(0, len(body), 7000):
        run.type(body[at : at + 7000])
    run.session.close_stdin(run.now_ns)
    assert run.look().code == 0
    assert b"skipped" in run.err
    assert (
        sh("ls /tmp /tmp/d; test -f /escape || echo safe", pod).out
        == b"/tmp:\nd\n/tmp/d:\nblob\nsafe\n"
    )
    back = pod.run("tar", "cf", "-", "/tmp/d").look(limit=9999)
    assert back.code == 0
    assert back.err == b"tar: removing leading '/' from member names\n"
    with tarfile.open(fileobj=io.BytesIO(back.out)) as archive:
        assert archive.getnames() == ["tmp/d", "tmp/d/blob"]
        inner = archive.extractfile("tmp/d/blob")
        assert inner is not None
        assert inner.read() == data
    missing = pod.run("tar", "cf", "-", "/none").look()
    assert missing.code == 1
    assert missing.err.startswith(b"tar: /none: No such file or directory\n")


def test_a_shell_answers_line_by_line() -> None:
    run = Pod().run("sh", stdin=True).look()
    assert run.out == b""
    assert run.type("cd /tmp; X=5\npwd; ec").out == b""
    assert run.wake_ns is None
    run.type("ho $X\nnope\n")
    assert (run.out, run.err) == (b"/tmp\n5\n", b"sh: nope: not found\n")
    assert run.type("exit 7\n").code == 7


def test_a_shell_without_more_input_ends_with_the_last_code() -> None:
    run = Pod().run("sh", stdin=True)
    run.type("false")
    run.session.close_stdin(run.now_ns)
    assert run.look().code == 1
    assert Pod().run("sh").look().code == 0


def test_a_terminal_echoes_and_prompts() -> None:
    run = Pod().run("sh", stdin=True, tty=True).look()
    assert run.out == b"/ # "
    assert run.type("echo hx\x7fi\r").out == b"/ # echo hx\b \bi\r\nhi\r\n/ # "
    run.out = b""
    run.type("sleep 60\r")
    assert run.type("echo later\r").out == b"sleep 60\r\necho later\r\n"
    run.out = b""
    assert run.look(60).out == b"/ # later\r\n/ # "
    run.out = b""
    run.type("sleep 99\r")
    assert run.type("\x03").out == b"sleep 99\r\n^C\r\n/ # "
    assert run.type("\x04").code == 130


def test_a_command_at_a_terminal_can_be_interrupted() -> None:
    run = Pod().run("sleep", "100", stdin=True, tty=True).look()
    assert run.type("\x03").code == 130
    run = Pod().run("cat", stdin=True, tty=True).look()
    run.type("a\r\x04")
    assert (run.out, run.code) == (b"a\r\na\r\n", 0)
