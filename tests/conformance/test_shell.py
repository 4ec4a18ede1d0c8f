"""What is understood of a shell script that looks at variables and files."""

import pytest
from programs.container_files import view
from programs.process import run_words
from programs.surroundings import CommandRun, Look, Surroundings

from fleet.clock import NS_PER_S
from fleet.runtime.files import NodeFiles

S = NS_PER_S
IF = """
    if [[ -r /data/foo ]]
    then
        exit 0
    else
        touch /data/foo
        exit 42
    fi
"""


class Disk:
    """All files there are."""

    def __init__(self, **texts: str) -> None:
        self.texts = {f"/{name}": text for name, text in texts.items()}

    def at(self, after_ns: int) -> None:
        """All is of one instant."""

    def names(self, path: str) -> list[str]:
        return sorted(name[len(path) :].lstrip("/") for name in self.texts if name.startswith(path))

    def look(self, path: str) -> Look | None:
        return Look(0) if path in self.texts else None

    def read(self, path: str) -> str | None:
        return self.texts.get(path)

    def write(self, path: str, text: str | None) -> None:
        if text is None:
            self.texts.pop(path, None)
        else:
            self.texts[path] = text


def run(
    script: str, disk: Disk | None = None, flag: str = "-c", u: float = 0.5, **variables: str
) -> CommandRun:
    around = Surroundings(variables, disk or Disk(), u)
    return run_words(("sh", flag, script), around)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit $CODE", 7),
        ('exit "${CODE}"', 7),
        ("exit ${CODE:-3}", 7),
        ("exit ${EMPTY:-3}", 3),
        ("X=4; exit $X", 4),
        ("X=4 true; exit $((CODE - 1))", 6),
        ("exit $(( $CODE % 4 * 2 ))", 6),
        ("exit $(expr ${CODE} % 2)", 1),
        ("if [ $(expr $CODE % 2) -ne 0 ]; then exit 1; else exit 2; fi", 1),
        ("if false; then exit 1; elif test a = a; then exit 2; else exit 3; fi", 2),
        ("if false; then exit 1; fi", 0),
        ('[ "$EMPTY" = "" ] && exit 5', 5),
        ("[ -z $EMPTY ] || exit 5", 0),
        ("[[ 3 -gt 2 && a != b ]] && exit 6", 6),
        ("! true; exit $?", 1),
        ("for i in 1 2 3; do N=$((N0 + i)); done; exit $N", 3),
        ("i=0; while [ $i -lt 4 ]; do i=$((i + 1)); done; exit $i", 4),
        ("i=0; until [ $i = 3 ]; do i=`expr`; done", -1),
        ("(exit 3); exit $(($? + 1))", 4),
        ("{ exit 3; }; exit 4", 3),
        ("# a remark\nexit 2 # another", 2),
        ('test "a b" = "a b" && set -- x', 0),
        ("exit 4 > /dev/null 2>&1", 4),
        ("case $CODE in 7) exit 1;; esac", -1),
        ("[ -f /etc/passwd", -1),
        ("exit $UNSET", 0),
        ("echo *.txt", -1),
        ("f() { exit 1; }; f", -1),
        ("true &", -1),
    ],
)
def test_variables_and_conditions_decide_the_exit_code(script: str, code: int) -> None:
    done = run(script, CODE="7", EMPTY="", N0="0")
    assert (done.exit_code if done.run_ns is not None else -1) == code


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("set -e; false; exit 3", 1),
        ("if false; then true; fi; exit 3", 3),
        ("false && true; exit 3", 3),
        ("true && false; exit 3", 1),
        ("! true; exit 3", 3),
        ("[ 1 = 2 ]; exit 3", 1),
    ],
)
def test_a_shell_stops_at_errors_that_nobody_looks_at(script: str, code: int) -> None:
    assert run(script, flag="-ec").exit_code == code


def test_files_outlive_the_run_that_left_them() -> None:
    disk = Disk()
    assert run(IF, disk).exit_code == 42
    assert run(IF, disk).exit_code == 0
    assert run("rm /data/foo", disk).exit_code == 0
    assert run("rm /data/foo", disk).exit_code == 1
    assert run("rm -f /data/foo", disk).exit_code == 0
    assert run(IF, disk).exit_code == 42


def test_a_counter_in_a_file() -> None:
    disk = Disk()
    count = "N=$(cat /data/n 2>/dev/null || echo 0); echo $((N + 1)) > /data/n; [ $N -ge 2 ]"
    assert [run(count, disk).exit_code for _ in range(4)] == [1, 1, 0, 0]
    run("echo more >> /data/n; mkdir -p /data/d", disk)
    assert disk.texts == {"/data/n": "4\nmore\n", "/data/d": "/"}
    assert run("test -d /data/d && test ! -f /data/d && [ -s /data/n ]", disk).exit_code == 0


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("echo one; echo 'two three' | wc -w", "one\n2\n"),
        ("wc -l /f | awk {'print $1'}", "3\n"),
        ("wc -l < /f", "3\n"),
        ("cat /f | head -n 2 | tail -1", "b 2\n"),
        ("grep -v b /f", "a 1\nc 3\n"),
        ("grep -q '^b' /f && echo yes", "yes\n"),
        ("grep x /f || echo no", "no\n"),
        ("grep -c 1 /f", "1\n"),
        ("cat /f | cut -d ' ' -f 2", ""),
        ("echo a:b:c | cut -d: -f2", "b\n"),
        ("for i in $(seq 2 4); do echo $i; done | tr -d '\\n'", "234"),
        ("awk '{ print }' /f | grep c", "c 3\n"),
        ("cat /f | sort -k2", ""),
        ("sed s/a/b/ /f", None),
        ("X=1; echo x | X=2; echo $X", "1\n"),
        ("tail -n1 /f", "c 3\n"),
    ],
)
def test_text_goes_through_pipes(script: str, printed: str | None) -> None:
    done = run(script, Disk(f="a 1\nb 2\nc 3\n"))
    assert (done.text("") if done.run_ns is not None else None) == printed


def test_a_pipe_takes_as_long_as_its_longest_part_and_ends_as_its_last() -> None:
    assert run("(sleep 5; false) | sleep 2; sleep 1").run_ns == 6 * S
    assert run("true | false").exit_code == 1
    assert run("! echo a | grep -q b").exit_code == 0
    assert run("exit 3 | true; exit $?").exit_code == 0


def test_a_random_script_is_repeatable_and_fair() -> None:
    coin = "exit $(( $RANDOM / 16384 ))"
    codes = [run(coin, u=step / 100).exit_code for step in range(100)]
    assert codes == [run(coin, u=step / 100).exit_code for step in range(100)]
    assert 30 < sum(codes) < 70
    assert set(codes) == {0, 1}


def test_time_adds_up_through_every_kind_of_command() -> None:
    script = "sleep 1; if sleep 2; then for i in 1 2; do sleep 3; done; fi; (sleep 4) && sleep 5"
    assert run(script) == CommandRun(18 * S)
    assert run("while true; do sleep 1; done").run_ns is None


def test_what_is_printed_goes_where_it_is_sent() -> None:
    done = run('echo "a  $X" b; echo $(echo $X; echo d) > /dev/termination-log', X="c  c")
    assert done.text("") == "a  c  c b\n"
    assert done.text("/dev/termination-log") == "c c d\n"
    assert run("exec echo bye; echo never").text("") == "bye\n"
    assert run("echo oops >&2").text("") == "oops\n"
    assert run("for i in 1 2; do echo $i; sleep 1; done").text("", until_ns=0) == "1\n"


def test_the_bytes_of_a_file_are_dumped() -> None:
    texts = {"/b": "\udcde\udcca\udcfe", "/t": "0123456789abcdef\n"}
    files = view(NodeFiles(), (), {}, ("u", "/c"), 0, system=texts)
    around = Surroundings({}, files, 0.0, is_whole=True)
    assert run_words(("hexdump", "-C", "/b"), around).text("") == (
        "00000000  de ca fe                                          |...|\n00000003\n"
    )
    first, second, _ = run_words(("hexdump", "-C", "/t"), around).text("").splitlines()
    assert first == (
        "00000000  30 31 32 33 34 35 36 37  38 39 61 62 63 64 65 66  |0123456789abcdef|"
    )
    assert second.startswith("00000010  0a     ")
