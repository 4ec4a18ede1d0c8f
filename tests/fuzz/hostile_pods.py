"""Pods that mean harm: their commands, variables, annotations, probes, and archives.

Each is drawn from a grammar of what fleet understands, with numbers at their ends, texts that grow
when they are expanded, and nesting; then some of its characters are changed.
"""

import tarfile
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import orjson
from limits import within_limits
from mutate import mutated
from world.pod_world import World

from fleet.k8s.effects import WatchKind
from fleet.k8s.pods import Pod
from fleet.k8s.streams import LogOptions
from fleet.kubelet.containers.container_exec import ExecSession
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.profile.container_behavior import PROBE_ANNOTATIONS
from fleet.runtime.container_log import LogReader
from fleet.runtime.files import NodeFiles
from fleet.runtime.session import Session
from fleet.runtime.shell.builtins import BUILTINS
from fleet.runtime.shell.file_programs import FILE_PROGRAMS
from fleet.runtime.shell.process import Process, run_words
from fleet.runtime.shell.programs import TEXT_PROGRAMS
from fleet.runtime.shell.surroundings import Surroundings
from fleet.server.host_interface import container_logs, exec_in
from fleet.wire.api import codec

NUMBERS = (
    *("0", "1", "-1", "00", "7", "1e308", "nan", "inf", "-inf", "0x7f", "1_0", "\u0661", "1.5", ""),
    *("127", "65536", "999999999d", "2147483648", "9223372036854775808", "9" * 400, "9" * 5000),
)
TEXTS = (
    *("a", "", " ", "é", "\\", "'", '"', "*", "%", "%s", "%999999999d", "%n", "\\0777", "{", "}"),
    *("a" * 300, "a\nb", "/", "/tmp/a", "../..", "//[", "http://[", "http://a:b/", "-", "--", "[["),
    *("\ud7ff", "\U0010ffff", "\x01", "\t", "$$", "-n", "-c", "x=1", "=", "!", "]", "]]"),
)
PATTERNS = (
    *(".*.*.*.*.*x", "a*a*a*a*a*a*b", "^.*$", "\\s*\\s*\\s*x", "(a+)+$", "[", ".*" * 40, "a" * 900),
    *("^^", "$^", "*", "\\s" * 99, "x*" * 200),
)
PATHS = (
    "/tmp/a",
    "/tmp",
    "/etc/hosts",
    "/dev/termination-log",
    "/data/a",
    "/",
    "a",
    "../../a",
    "~",
)
NAMES = ("A", "B", "A0", "PATH", "RANDOM", "?", "1", "@", "HOSTNAME", "é")
OPENERS = (
    *(("(", ")"), ("{ ", "; }"), ("$(", ")"), ('"$(echo ', ')"'), ("${A:-", "}"), ("$((", "))")),
    *(("if ", "; then :; fi"), ("! ", ""), ("[[ ", " ]]"), ("`", "`"), ("while ", "; do :; done")),
    *(("for A in ", "; do :; done"), ("sh -c '", "'"), ("exec ", ""), ("env ", ""), ("case ", "")),
)
PROGRAMS = (*BUILTINS, *TEXT_PROGRAMS, *FILE_PROGRAMS, "sh", "agnhost", "java")
OPTIONS = (
    "-n",
    "-c",
    "-d",
    "-f",
    "-q",
    "-v",
    "-x",
    "-R",
    "-rn",
    "-p",
    "-1",
    "-C",
    "-e",
    "-w",
    "-z",
)
AGNHOST = ("logs-generator", "mounttest", "pause", "netexec", "entrypoint-tester", "dns-suffix")
FLAGS = (
    "-t",
    "-d",
    "--log-lines-total",
    "--run-duration",
    "--retry_time",
    "--file_content_in_loop",
)
QUANTITIES = ("0", "1", "-1", "1n", "1e18", "9223372036854775807", "1Ei", "0.0001", "1e-9", "8E")
SECONDS = (0, 1, 2, 30, 3600, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -1, -(2**63))
ANNOTATIONS = (
    *("mount-delay", "mount-error", "unmount-fails", "empty-dir-usage", "unhealthy-devices"),
    *("memory-usage", "cpu-usage", "ephemeral-storage-usage", "inodes-usage", "pids-usage"),
    *("swap-usage", "network-receive", "network-transmit", "logs", "start-failure"),
    *("start-failure-times", "post-start", "pre-stop", "stop-time", "stop-exit-code"),
    *("stop-error", "termination-message", "resize-error", "start-delay", "run-time"),
    *("exit-code", "exit-reason", "image-size", "pull-time", "pull-error", "nothing"),
    *(name.partition("/")[2] for name in PROBE_ANNOTATIONS),
)
STAYS = ("stop-error", "stop-time", "unmount-fails", "image-size", "pull-time", "start-delay")
"""Pods that declare it may not end, or be busy for long."""
VALUES = (
    *("10s", "1e9h", "Success after 5s", "Failure after 99999999999h", "500m", "1Ti", "[]", "{}"),
    *("{curve: Ramp, from: 1, to: 1e300, duration: 1ns}", "{linesPerSecond: 1e300, size: 1}"),
    *("{linesPerSecond: 1e-300}", "{template: '" + "{{index}}" * 99 + "', linesPerSecond: 1000}"),
    *(
        "{size: 999999999999, linesPerSecond: 1}",
        "{distribution: LogNormal, median: 1s, p99: 9e9s}",
    ),
    *("&a [*a, *a]", "&a {<<: *a}", "[" * 900, '{"a":' * 900, "!!python/object:os.system {}"),
    *("- {after: 1s, result: Failure}\n- {after: 0s, result: Success}", "1" * 4000, "null", "~"),
    "a: &a ["
    + "x, " * 9
    + "]\n"
    + "".join(f"{c}: &{c} [" + f"*{chr(ord(c) - 1)}, " * 9 + "]\n" for c in "bcdefghi"),
)


# ---- drawing ----


def number(random: Random) -> str:
    return random.choice(NUMBERS)


def word(random: Random, depth: int) -> str:  # noqa: PLR0911 - one for each kind
    match random.randrange(12):
        case 0 | 1:
            return f"${random.choice(NAMES)}"
        case 2:
            return '"' + word(random, depth) + '"' if depth < 4 else "a"
        case 3:
            return "$(" + script(random, depth + 1) + ")" if depth < 3 else "b"
        case 4:
            return f"$(({random.choice(NAMES)}{random.choice('+-*/%<>')}{number(random)}))"
        case 5:
            return f"'{random.choice(PATTERNS)}'"
        case 6:
            return number(random)
        case 7:
            return random.choice(PATHS)
        case 8:
            return random.choice(OPTIONS)
        case 9:
            return f"$A{word(random, depth + 1)}$A" if depth < 6 else "$A"
        case _:
            return random.choice(TEXTS)


def command(random: Random, depth: int) -> str:  # noqa: PLR0911 - one for each kind
    match random.randrange(14):
        case 0:
            name = random.choice(("A", "B"))
            given = random.choice(("$A$A", "$B$A$B", "a", "$(seq 1 999)", word(random, depth)))
            return f"{random.choice(('', 'export ', 'env '))}{name}={given}"
        case 1:
            opener, closer = random.choice(OPENERS)
            count = random.choice((1, 1, 2, 9, 70, 400))
            return opener * count + random.choice(("true", "1", "a")) + closer * count
        case 2:
            return (
                f"{command(random, depth + 1)} | {command(random, depth + 1)}" if depth < 4 else ":"
            )
        case 3:
            test = " ".join(word(random, 4) for _ in range(random.randrange(5)))
            return random.choice((f"[ {test} ]", f"[[ {test} ]]", f"test {test}", f"expr {test}"))
        case 4:
            body = script(random, depth + 1) if depth < 3 else ":"
            return f"{random.choice(('while', 'until'))} {command(random, 9)}; do {body}; done"
        case 5:
            words = random.choice(("1 2 3", "$A", "$(seq 1 900)", word(random, depth)))
            body = script(random, depth + 1) if depth < 3 else "A=$A$A"
            return f"for i in {words}; do {body}; done"
        case 6:
            operator, target = random.choice((">", ">>", "<", "2>")), random.choice(PATHS)
            return f"echo {word(random, depth)} {operator} {target}"
        case 7:
            return f"sleep {number(random)}"
        case _:
            args = [word(random, depth) for _ in range(random.randrange(4))]
            return " ".join((random.choice(PROGRAMS), *args))


def script(random: Random, depth: int = 0) -> str:
    joint = random.choice(("; ", "\n", " && ", " || ", " & "))
    count = random.choice((1, 1, 2, 3, 9)) if depth else random.choice((1, 2, 4, 12, 60))
    return joint.join(command(random, depth) for _ in range(count))


def words_of(random: Random) -> list[str]:
    match random.randrange(6):
        case 0:
            return [random.choice(PROGRAMS), *(word(random, 9) for _ in range(random.randrange(6)))]
        case 1:
            given = [random.choice((*FLAGS, number(random), *PATHS)) for _ in range(6)]
            return ["agnhost", random.choice(AGNHOST), *given]
        case 2:
            text = script(random).encode()
            return ["sh", "-c", mutated(text, random, (text,)).decode("utf-8", "replace")]
        case _:
            return ["sh", random.choice(("-c", "-ec", "-xc")), script(random)]


def surroundings(*, is_whole: bool, given: bytes | None = None) -> Surroundings:
    files = NodeFiles().view((), {}, system={"/etc/hosts": "a" * 4000}, start_ns=1)
    files.write("/tmp/a", "a" * 4000 + "\n" + "b c\n" * 300)
    names = {"A": "a", "B": "b " * 99}
    return Surroundings(
        names, files, 0.5, 1_700_000_000 * 10**9, is_whole=is_whole, input=given, cwd="/"
    )


# ---- commands ----


def make_command(random: Random) -> tuple[bytes, ...]:
    words = [each.encode("utf-8", "replace") for each in words_of(random)]
    return (b"%d" % random.randrange(4), *words)


@within_limits
def judge_command(pieces: tuple[bytes, ...]) -> None:
    """A command ends, goes on for ever, or is over its budget; so does its log, and an exec."""
    how, *rest = pieces
    words = [each.decode("utf-8", "replace") for each in rest]
    match int(how):
        case 0:
            run_words(words, surroundings(is_whole=True, given=b"a b\n" * 99))
        case 1:
            process = Process(words, surroundings(is_whole=False))
            process.advance(3600 * 10**9, 100)
        case 2:
            lines = "\n".join(words[-1:]).encode() + b"\n"

            def around(given: bytes | None, *, is_trial: bool) -> Surroundings:
                del given, is_trial
                return surroundings(is_whole=True)

            session = Session(("sh",), around, 0, stdin=True, tty=len(lines) % 2 == 0)
            session.write(lines, 0)
            session.close_stdin(1)
            for now_ns in range(2, 5):
                session.advance(1 << 16, now_ns)
        case _:
            run_words(words, surroundings(is_whole=False))


# ---- archives ----


def _member(random: Random) -> bytes:
    kinds = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE)
    odd = (tarfile.GNUTYPE_SPARSE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE)
    info = tarfile.TarInfo(random.choice(("a", "d/e", "../../x", "/etc/a", "n" * 90, ".", "")))
    info.type = random.choice((*kinds, *odd))
    info.size = random.choice((0, 1, 511, 512, 513, 4000, 1 << 20, 1 << 33, (1 << 63) - 1))
    data = bytearray(info.tobuf(tarfile.GNU_FORMAT, "utf-8", "replace"))
    if random.randrange(3) == 0:  # the map of a sparse file; numbers at their ends
        at = random.choice((124, 386, 398, 482, 483))
        data[at : at + 12] = random.choice((b"\x80" + b"\x7f" * 11, b"\xff" * 12, b"77777777777\0"))
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    body = b"a" * min(info.size, 5000)
    if info.type in {tarfile.XHDTYPE, tarfile.XGLTYPE}:
        body = random.choice(
            (
                b"99 size=99999999999999\n",
                b"30 GNU.sparse.size=9999999999\n",
                b"-1 a=b\n",
                b"0 ",
                body,
            )
        )
    return bytes(data[:512]) + body.ljust(-(-len(body) // 512) * 512, b"\0")


def make_tar(random: Random) -> tuple[bytes, ...]:
    members = [_member(random) for _ in range(random.choice((1, 2, 5)))]
    data = b"".join(members * random.choice((1, 1, 1, 40)))
    if random.randrange(2):
        data = mutated(data, random, members)
    return (data,)


@within_limits
def judge_tar(pieces: tuple[bytes, ...]) -> None:
    """An archive that `kubectl cp` sends is unpacked or refused, and becomes no larger."""
    (data,) = pieces

    def around(given: bytes | None, *, is_trial: bool) -> Surroundings:
        del is_trial
        return surroundings(is_whole=True, given=given)

    session = Session(("tar", "-xmf", "-", "-C", "/tmp"), around, 0, stdin=True, tty=False)
    session.write(data, 0)
    session.close_stdin(1)
    while (found := session.advance(1 << 16, 2)).exit_code is None and found.more:
        pass
    written = sum(len(each.text or "") for each in session.changes)
    assert written <= len(data), (written, len(data))


# ---- whole pods ----


def _probe(random: Random) -> dict[str, Any]:
    handlers: tuple[dict[str, Any], ...] = (
        {"exec": {"command": words_of(random)}},
        {"httpGet": {"path": random.choice(TEXTS), "port": random.choice((80, 0, 65535, "http"))}},
        {"tcpSocket": {"port": random.choice((80, "é", 2**31 - 1))}},
        {"grpc": {"port": 1, "service": random.choice(TEXTS)}},
    )
    fields = ("periodSeconds", "timeoutSeconds", "initialDelaySeconds", "failureThreshold")
    ends = (1, 1, 2, 3600, 2**31 - 1)
    return {**random.choice(handlers), **{field: random.choice(ends) for field in fields}}


def _container(random: Random, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "image": random.choice(("nginx:1", "busybox", "a@b"))}
    found["imagePullPolicy"] = "IfNotPresent"
    if random.randrange(4):
        found["command"] = words_of(random)
    found["env"] = _variables(random)
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        if random.randrange(4) == 0:
            found[kind] = _probe(random)
    if random.randrange(3) == 0:
        hook = random.choice(("preStop", "postStart"))
        sleeps = {"sleep": {"seconds": random.choice((0, 1, 20))}}
        found["lifecycle"] = {
            hook: random.choice(({"exec": {"command": words_of(random)}}, sleeps))
        }
    mount = {"name": "data", "mountPath": random.choice(("/data", "/tmp/a", "/"))}
    mount[random.choice(("subPath", "subPathExpr"))] = random.choice(
        ("", "$(A)", "$(A0)$(A0)", "../x", "/x", "$(NONE)", "a" * 4000, "$$(A)", "a/./b")
    )
    found["volumeMounts"] = [mount]
    found["terminationMessagePath"] = random.choice(("/dev/termination-log", "/tmp/a", ""))
    found["terminationMessagePolicy"] = random.choice(("File", "FallbackToLogsOnError"))
    kinds = ("cpu", "memory", "ephemeral-storage")
    found["resources"] = {
        each: {kind: random.choice(QUANTITIES) for kind in kinds} for each in ("limits", "requests")
    }
    return found


def _variables(random: Random) -> list[dict[str, Any]]:
    times = random.choice((1, 2, 10, 300))
    chain: list[dict[str, Any]] = [{"name": "A0", "value": random.choice(TEXTS)}]
    length = random.choice((1, 2, 12, 40))
    chain += [{"name": f"A{at}", "value": f"$(A{at - 1})" * times} for at in range(1, length)]
    field = random.choice(("metadata.annotations", "metadata.labels['a']", "status.podIP", "x"))
    chain.append({"name": "F", "valueFrom": {"fieldRef": {"fieldPath": field}}})
    source = {"resource": "limits.cpu", "divisor": random.choice(QUANTITIES)}
    chain.append({"name": "R", "valueFrom": {"resourceFieldRef": source}})
    return chain


def make_pod(random: Random) -> tuple[bytes, ...]:
    annotations = {
        f"fleet.emulator/{name}": random.choice((*VALUES, *TEXTS, *NUMBERS))
        for name in random.sample(ANNOTATIONS, random.choice((0, 1, 3, 9)))
    }
    if random.randrange(9) == 0:
        annotations["huge"] = "x" * 250_000
    spec: dict[str, Any] = {
        "containers": [_container(random, "c"), _container(random, "d")][: random.choice((1, 2))],
        "restartPolicy": random.choice(("Always", "OnFailure", "Never")),
        "terminationGracePeriodSeconds": random.choice((0, 1, 30, 2**31 - 1, 2**62)),
        "nodeName": "n",
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    if random.randrange(4) == 0:
        spec["initContainers"] = [_container(random, "i")]
    if random.randrange(6) == 0:
        spec["activeDeadlineSeconds"] = random.choice((1, 5, 2**31 - 1))
    meta = {
        "name": random.choice(("web", "a" * 253)),
        "namespace": "default",
        "uid": "04c9b91f-aca5-4ecd-ab8c-6056fcc32e70",
        "resourceVersion": "7",
        "labels": {"a": random.choice(TEXTS[:3])},
        "annotations": annotations,
    }
    pod = {"metadata": meta, "spec": spec, "status": {"phase": "Pending", "qosClass": "Burstable"}}
    return (orjson.dumps({"type": "ADDED", "object": pod}),)


@within_limits
def judge_pod(pieces: tuple[bytes, ...]) -> None:
    """A pod comes up or fails, its log is read, a command runs in it, and it goes."""
    (event,) = pieces
    _, _, pod = codec.JSON.decode_watch_event(event, WatchKind.PODS)
    assert isinstance(pod, Pod), pod
    world = World()
    world.create(pod)
    world.run(5)
    kubelet = cast(
        "VirtualKubelet",
        SimpleNamespace(pods=world.loop, env=world.env, on_container_changed=lambda *_given: None),
    )
    for shown in world.loop:
        reader = container_logs(kubelet, shown, "c", LogOptions(), world.now_ns)
        if isinstance(reader, LogReader):
            reader.read(1 << 16, world.now_ns)
        words = ("sh", "-c", "env; ls -R /data; cat /tmp/a")
        session = exec_in(kubelet, shown, "c", words, stdin=False, tty=False, now_ns=world.now_ns)
        if isinstance(session, ExecSession):
            session.advance(1 << 16, world.now_ns)
    for uid in list(world.pods):
        world.delete(uid, grace_s=2)
        world.run(20)
    # No kubelet cuts a hook short that has begun, however long it sleeps.
    stays = any(name.encode() in event for name in (*STAYS, "lifecycle"))
    assert stays or not world.pods, "it does not go"
