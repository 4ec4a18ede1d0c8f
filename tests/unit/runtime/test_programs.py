"""Where a program comes from: a PodBehavior, a plug-in, the container's command."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml
from support import markdown
from world.pod_world import UID, World, container, make_pod

from fleet.clock import NS_PER_S
from fleet.errors import UsageError
from fleet.k8s.pods import ContainerSpec, Pod, ProbeSpec
from fleet.profile.container_behavior import ALWAYS_GOOD, ProbeAnswer, ProbeBehavior, ProbePhase
from fleet.profile.loader import parse_documents
from fleet.profile.pod_behavior import ContainerBehavior, PodBehaviorManifest
from fleet.runtime import programs
from fleet.runtime.commands import TEXT_MAX
from fleet.runtime.files import NodeFiles
from fleet.runtime.program import Process, Program
from fleet.runtime.programs import (
    CommandProgram,
    http_reply,
    load_programs,
    probe_in_files,
    probe_of,
    program_of,
    run_in,
)

EXAMPLE = markdown.ROOT / "profiles" / "programs" / "redis.py"
PAGE = markdown.ROOT / "docs" / "how-to" / "programs.md"
REDIS = container("c", image="registry.example.net/redis:8")
PING = ("redis-cli", "ping")


@pytest.fixture(autouse=True)
def unloaded() -> Iterator[None]:
    yield
    load_programs(())


def declared() -> ContainerBehavior:
    """Return what the page declares."""
    [text] = [each.text for each in markdown.blocks(PAGE) if each.text.startswith("apiVersion")]
    [found] = parse_documents(text, "page")
    assert isinstance(found, PodBehaviorManifest)
    return found.compiled().container("redis")


def asked(command: tuple[str, ...], behavior: ContainerBehavior) -> tuple[str, int | None, int]:
    pod = make_pod(REDIS)
    run = run_in(Process(pod, REDIS), command, program_of(pod, REDIS), behavior)
    return run.text(""), run.run_ns, run.exit_code


def test_a_behaviour_declares_answers_of_commands_and_ports() -> None:
    behavior = declared()
    assert asked(PING, behavior) == ("PONG\n", 0, 0)
    assert asked(("redis-cli", "save", "now"), behavior) == ("OK\n", 2_000_000_000, 0)
    assert asked(("redis-cli", "x"), behavior) == ("(error) ERR unknown command\n", 0, 1)
    assert asked(("echo", "a"), behavior) == ("a\n", 0, 0)
    pod = make_pod(REDIS)
    replies = [
        http_reply(Process(pod, REDIS), port, path, Program(), behavior)
        for port, path in ((9121, "/metrics?a=b"), (80, "/metrics"))
    ]
    assert [each and (each.code, each.body) for each in replies] == [
        (200, b"redis_up 1\n"),
        (404, b""),
    ]


@pytest.mark.parametrize(
    ("probe", "answers"),
    [
        (ProbeSpec("exec", command=PING), ["Success"]),
        (ProbeSpec("exec", command=("redis-cli", "x")), ["Failure"]),
        (ProbeSpec("httpGet", port=9121, path="/metrics"), ["Success"]),
        (ProbeSpec("httpGet", port=80, path="/ready"), ["Failure"]),
        (ProbeSpec("tcpSocket", port=80), ["Success"]),
    ],
)
def test_probes_find_what_is_declared(probe: ProbeSpec, answers: list[str]) -> None:
    found = probe_of(make_pod(REDIS), REDIS, probe, CommandProgram(()), declared())
    assert [each.answer.value for each in found.phases] == answers


def test_the_example_of_the_page_is_shipped_and_plays_redis() -> None:
    [text] = [each.text for each in markdown.blocks(PAGE) if each.language == "python"]
    assert text.strip() == EXAMPLE.read_text().strip()
    load_programs((EXAMPLE,))
    probe = ProbeSpec("exec", command=PING, period_s=1)
    world = World()
    world.create(make_pod(REDIS._replace(readiness_probe=probe)))
    world.run(2.5)
    assert not world.container(UID).ready
    world.run(3)
    assert world.container(UID).ready
    assert asked(PING, ContainerBehavior()) == ("PONG\n", 0, 0)
    assert isinstance(program_of(make_pod(), container()), CommandProgram)


def test_the_first_plug_in_that_knows_a_container_wins(tmp_path: Path) -> None:
    package = tmp_path / "two"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import program_of\n")
    (package / "inner.py").write_text(
        "from fleet.runtime.program import Program\n"
        "class Two(Program): pass\n"
        "def program_of(pod, spec): return Two()\n"
    )
    load_programs((EXAMPLE, package))
    found = [type(program_of(make_pod(), each)).__name__ for each in (REDIS, container())]
    assert found == ["Redis", "Two"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "is neither a Python file nor a package"),
        ("x = 1", "has no function program_of(pod, spec)"),
        ("import nothing_like_it", "cannot be imported: ModuleNotFoundError: No module named"),
        ("def (", "cannot be imported: SyntaxError: "),
    ],
)
def test_a_plug_in_that_is_none(tmp_path: Path, text: str | None, problem: str) -> None:
    path = tmp_path / "bad.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=f"--programs {path}: ") as raised:
        load_programs((path,))
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_entry_point_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("bad", "fleet.runtime.programs:nothing_like_it", programs.GROUP)
    monkeypatch.setattr(programs, "entry_points", lambda **_: [point])
    with pytest.raises(
        UsageError, match=r"^entry point bad of .*: cannot be imported: AttributeError"
    ):
        load_programs(())


class Dying(Program):
    """Its probes fail from an age of 10 s on, whatever its files are."""

    def probe(self, pod: Pod, spec: ContainerSpec, probe: ProbeSpec) -> ProbeBehavior:  # noqa: ARG002
        """Return what a probe finds."""
        return ProbeBehavior((ProbePhase(), ProbePhase(10 * NS_PER_S, ProbeAnswer.FAILURE)))


@pytest.mark.parametrize(
    "probe",
    [ProbeSpec("httpGet", "http", port=80, path="/"), ProbeSpec("exec", "", command=("x",))],
)
def test_a_plug_in_says_what_probes_find_after_somebody_wrote_a_file(probe: ProbeSpec) -> None:
    pod, spec = make_pod(REDIS), REDIS
    files, behavior = NodeFiles(), ContainerBehavior()
    before = probe_of(pod, spec, probe, Dying(), behavior)
    found = probe_in_files(
        lambda age_ns: Process(pod, spec, start_ns=NS_PER_S + age_ns, files=files),
        *(probe, before, 5 * NS_PER_S, Dying(), behavior),
    )
    answers = [found.at(age_s * NS_PER_S)[0].answer for age_s in (1, 5, 9, 10, 20)]
    assert answers == [*(ProbeAnswer.SUCCESS,) * 3, *(ProbeAnswer.FAILURE,) * 2]


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"exec": [{"stdout": "x"}]}, "exec[0].command"),
        ({"exec": [{"command": "a", "exitCode": 300}]}, "exec[0].exitCode"),
        ({"http": [{"path": "metrics"}]}, "http[0].path"),
        ({"http": [{"path": "/", "status": 42}]}, "http[0].status"),
    ],
)
def test_bad_answers_are_refused(wrong: dict[str, object], where: str) -> None:
    spec = {"containers": [{"name": "c", **wrong}]}
    document = {"kind": "PodBehavior", "metadata": {"name": "x"}, "spec": spec}
    text = yaml.safe_dump({"apiVersion": "fleet.emulator/v1alpha1", **document})
    with pytest.raises(UsageError) as raised:
        parse_documents(text, "file")
    assert f"spec.containers[0].{where}" in str(raised.value)


def test_a_program_that_serves_runs_on_in_a_job() -> None:
    class Server(Program):
        is_server = True

    def find(_pod: Pod, _spec: ContainerSpec) -> Program | None:
        return Server()

    programs._plug_ins[:] = [find]
    world = World()
    world.create(make_pod(container(), restart_policy="Never", is_controlled=True))
    world.run(60)
    assert world.pods[UID].status.phase == "Running"


def test_the_long_command_of_a_probe_passes_and_is_not_kept() -> None:
    pod = make_pod(container("c", "sleep", "9"))
    kept = programs._phases.cache_info().currsize
    probe = ProbeSpec("exec", command=("false", "x" * TEXT_MAX))
    program = program_of(pod, pod.spec.containers[0])
    found = probe_of(pod, pod.spec.containers[0], probe, program, ContainerBehavior())
    assert found == ALWAYS_GOOD
    assert programs._phases.cache_info().currsize == kept
