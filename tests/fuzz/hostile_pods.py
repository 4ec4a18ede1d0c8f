"""Pods that mean harm: their commands, variables, annotations and probes.

Each is drawn from a grammar of what fleet understands, with numbers at their ends, texts that grow
when they are expanded, and nesting; then some of its characters are changed.
"""

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import orjson
from limits import within_limits
from support.mutate import mutated
from world.pod_world import World

from fleet.k8s.effects import WatchKind
from fleet.k8s.pods import Pod
from fleet.k8s.streams import LogOptions
from fleet.kubelet.kubelet import VirtualKubelet
from fleet.runtime.commands import COMMANDS, NewFiles, Script
from fleet.runtime.container_log import LogReader
from fleet.runtime.exec_session import StepsSession
from fleet.server.host_interface import ExecSession, container_logs, exec_in
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
PROGRAMS = (*sorted(COMMANDS), "export", "seq", "grep", "sh", "agnhost", "java")
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
ANNOTATIONS = (
    *("mount-delay", "mount-error", "unmount-fails", "empty-dir-usage"),
    *("memory-usage", "cpu-usage", "ephemeral-storage-usage", "inodes-usage", "pids-usage"),
    *("swap-usage", "network-receive", "network-transmit", "logs", "start-failure"),
    *("start-failure-times", "post-start", "pre-stop", "stop-time", "stop-exit-code"),
    *("stop-error", "termination-message", "resize-error", "start-delay", "run-time"),
    *("exit-code", "exit-reason", "image-size", "pull-time", "pull-error", "nothing"),
    *("startup-probe", "readiness-probe", "liveness-probe"),
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


# ---- commands ----


def make_command(random: Random) -> tuple[bytes, ...]:
    words = [each.encode("utf-8", "replace") for each in words_of(random)]
    return (b"%d" % random.randrange(4), *words)


@within_limits
def judge_command(pieces: tuple[bytes, ...]) -> None:
    """A command ends, goes on for ever, or is over its budget; so does its log, and an exec."""
    how, *rest = pieces
    words = tuple(each.decode("utf-8", "replace") for each in rest)
    script = Script(words, NewFiles({"/tmp/a": "a" * 4000}, is_new=True), is_asked=int(how) == 0)
    if int(how) < 2:
        script.run()
        return
    session = StepsSession(script, 0, tty=int(how) == 2)
    for now_ns in (1, 10**9, 3600 * 10**9):
        session.advance(1 << 16, now_ns)


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
        words = ("sh", "-c", "cat /data/a; touch /data/b; cat /tmp/a")
        session = exec_in(kubelet, shown, "c", words, stdin=False, tty=False, now_ns=world.now_ns)
        if isinstance(session, ExecSession):
            session.advance(1 << 16, world.now_ns)
    for uid in list(world.pods):
        world.delete(uid, grace_s=2)
        world.run(20)
    # No kubelet cuts a hook short that has begun, however long it sleeps.
    stays = any(name.encode() in event for name in (*STAYS, "lifecycle"))
    assert stays or not world.pods, "it does not go"
