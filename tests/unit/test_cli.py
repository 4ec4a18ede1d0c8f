"""The command line: every foreseen failure is one line and a documented exit code."""

import json
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import yaml

from fleet import KUBERNETES_VERSION
from fleet.cli import cli, controlplane, install_command, main, spawn
from fleet.controlplane.binaries import BUILT, PROGRAM, PROGRAMS, Binaries, cache_directory
from fleet.errors import Exit
from fleet.profile.loader import load_mix
from fleet.profile.option_types import ProfileChoice
from fleet.profile.release import minor_of
from fleet.profile.settings import Settings
from fleet.run.cli_options import EXAMPLES, SECTIONS


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


class Fleet:
    """The command line, called in this process by a user who has no fleet and no state."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        monkeypatch.setenv("XDG_STATE_HOME", "/no/such/directory")

    def __call__(self, *arguments: str) -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["fleet", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, *self._capsys.readouterr())

    def prints(self, *arguments: str) -> str:
        """Return what a command prints that succeeds."""
        code, out, err = self(*arguments)
        assert code == Exit.OK, err
        return out

    def refuses(self, *arguments: str, code: Exit = Exit.USAGE) -> str:
        """Return the one line that a command says which fails."""
        ended = self(*arguments)
        assert (ended.code, ended.out) == (code, "")
        [line] = ended.err.splitlines()
        assert line.startswith("fleet: ")
        return line


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fleet:
    return Fleet(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["spawn", "--nods", "5"], "No such option '--nods'"),
        (["spawn", "--nodes", "x"], "'x' is not a valid integer"),
        (["spawn", "--nodes", "-3"], "--nodes: -3 is not at least 1"),
        (["spawn", "--nodes", "1e9"], "--nodes"),
        (["spawn", "--nodes", "0"], "--nodes: 0"),
        (["spawn", "--nodes", "100001"], "--nodes: 100001"),
        (["spawn", "--profile", "default=0"], "the weight '0' is not a number above 0"),
        (["spawn", "--profile", "./no-such.yaml"], "no-such.yaml"),
        (["spawn", "--name-prefix", "a" * 60], "shorten the prefix"),
        (["spawn", "--until-ready", "--duration", "5m"], "--until-ready excludes --duration"),
        (["spawn", "--on-master-quit", "hold"], "--on-master-quit needs --locust-master"),
        (["spawn", "--duration", "0s"], "--duration: 0s leaves no time"),
        (["spawn", "--in-cluster", "--context=x"], "--in-cluster excludes"),
        (["spawn", "--apiserver-flag=--"], "--apiserver-flag"),
        (["spawn", "--kubernetes-version=1.33"], "--kubernetes-version 1.33: fleet builds 1.34.4"),
        (["spawn", "--context=x", "--kubernetes-version=1.35"], "is for the local control plane"),
        (["controlplane", "up", "--kubernetes-version=x"], "--kubernetes-version x: fleet builds"),
        (["controlplane", "build", "--kubernetes-version=1.3"], "--kubernetes-version 1.3: fleet"),
        (["spawn", "--load=api_users"], "--load, --api-users, --dashboard-port and --dashboard"),
        (["spawn", "--dashboard", "--load=nowhere"], "--load nowhere: no such file, and no"),
        (["locust", "worker", "--locust-master=here"], "'here' is not HOST:PORT"),
        (["spawn", "--fidelity", "low"], "'low' is not one of 'kubelet', 'light'"),
        (["spawn", "--duration", "soon"], "--duration: 'soon' is not a duration"),
        (["spawn", "--name-prefix", "a.b"], "--name-prefix: 'a.b' is not a DNS label"),
        (["spawn", "--manage", "a in b"], "--manage: 'a in b' is no label selector such as"),
        (["spawn", "--profile", "nothing"], "nothing"),
        (["spawn", "--metrics-host", "0.0.0.0"], "--metrics-host needs --metrics-port"),
        (["spawn", "--identity=csr", "--bootstrap-kubeconfig=/no"], "kubeconfig /no: no such file"),
        (["spawn", "--zone-lables"], "Did you mean '--zone-labels'? See fleet spawn --help"),
        (["spawn", "-n"], "Option '-n' requires an argument"),
        (["spawn", "--rate=fast"], "'fast' is neither a number of nodes a second above 0 nor"),
        (["spawn", "--rate=0"], "'0' is neither a number of nodes a second above 0 nor max"),
        (["spawn", "--context", ""], "--context: is empty; give a value or leave it out"),
        (["spawn", "--run-dir="], "--run-dir: is empty"),
        (["clean", "--run", ""], "--run: is empty"),
        (["scale", "", "-n", "5"], "run: is empty"),
        (["inject", "NodeDown", "--nodes="], "--nodes: is empty"),
        (["profiles", "explain", "-f", ""], "--filename: is empty"),
        (["spawn", "--dry-run", "--kubernetes-version=1.20"], "1.20: fleet builds 1.34.4"),
        (["spawn", "--kubelet-version=1.30"], "'1.30' is not a version of 1.34 to 1.37 such as v"),
        (
            ["spawn", "--dry-run", "--kubernetes-version=1.35", "--kubelet-version=1.36.3"],
            "--kubelet-version v1.36.3: the API server is v1.35",
        ),
        (["spawn", "--dry-run", "--scheduler-flag=secure-port=x"], "--secure-port=x is no port"),
        (["run", "zone-outage", "--dry-run", "--confirm-cluster=x"], "x: no cluster is named"),
        (["rbac", "--user", ""], "--user: is empty"),
        (["spwan"], "No such command 'spwan'. Did you mean 'spawn'? See fleet --help"),
        (["spawn", "--rate=-5"], "'-5' is neither a number of nodes a second above 0 nor max"),
        (["spawn", "--stop-if=sometimes"], "'sometimes' is not readyz[:DURATION], errors["),
        (["spawn", "--provider-id=same"], "neither {{name}} nor {{index}}: all nodes would be"),
        (["spawn", "--serve=ports"], "--serve-at ADDRESS:PORT goes with --serve ports"),
        (["spawn", "--serve=ports", "--serve-at=host:80"], "--serve-at: 'host' is not an IP"),
        (["spawn", "--approve-csrs"], "--approve-csrs is for --identity csr"),
        (["spawn", "--processes=5", "-n3"], "5 processes for 3 nodes; each process needs"),
        (["spawn", "--output=xml"], "'xml' is not one of 'text', 'json', 'yaml'"),
        (["spawn", "--shard=10000"], "--shard: '10000' is not below 10000"),
        (["spawn", "--shard=0/3"], "--shard: '0/3' is not a whole number"),
        (["spawn", "--run-id=Upper"], "--run-id: 'Upper' is not lower-case letters, digits, '-'"),
        (["spawn", "--dashboard", "--until-ready"], "drop -- COMMAND, --until-ready, --duration"),
        (["spawn", "--slo=/no/such.yaml"], "--slo /no/such.yaml: No such file or directory"),
        (["spawn", "--kubeconfig=/etc/hosts"], "/etc/hosts: not a kubeconfig, it has no list of"),
        (["spawn", "--profile=gpu", "--profile=gpu"], "'gpu' names a profile twice"),
        (["run"], "Missing argument 'SCENARIO'; see fleet run --help"),
        (["run", "zone-outrage"], "did you mean 'zone-outage'"),
        (["run", "zone-outage", "--fidelity=light"], "Partition needs connections of the nodes'"),
        (["run", "./no-such.yaml"], "no-such.yaml: No such file or directory"),
        (["capacity"], "Missing option '--max-nodes'; see fleet capacity --help"),
        (["capacity", "--max-nodes=9", "--precision=1"], "'1' is not clear; write 1% or 100%"),
        (["capacity", "--max-nodes=9", "--context=x"], "add --confirm-cluster CONTEXT"),
        (["inject", "Nothing"], "'Nothing' is no fault; these are: HeartbeatLoss, "),
        (["inject", "SlowLink"], "SlowLink needs --by, for example --by 25s"),
        (["inject", "NodeDown", "--for=0s"], "--for: '0s' must be above 0s"),
        (["inject", "NodeDown", "--by=5s"], "NodeDown takes no --by; it takes nothing"),
        (["heal", "3", "--all"], "name one fault, or --all of them"),
        (["clean"], "name a cluster with --kubeconfig"),
        (["clean", "--statefulset=a/b"], "name the run of its pods with --run"),
        (["rbac", "--service-account=x"], "'x' is not NAMESPACE/NAME"),
        (["report", "/no/such"], "/no/such holds no run: neither summary.json nor"),
        (["report", "/tmp", "-opdf"], "'pdf' is not one of 'html', 'markdown', 'junit', 'op"),
        (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        (["help", "nothing"], "No such command 'nothing'; see fleet --help"),
        (["version", "extra"], "Got unexpected extra argument (extra); see fleet version --help"),
        (["swarm"], "No such command 'swarm'; see fleet --help"),
        (["clean", "--all", "--expired"], "--run, --all and --expired exclude one another"),
        (["profiles", "show", "nothing"], "nothing"),
        (["profiles", "explain", "-f", "/no/such"], "'/no/such': No such file or directory"),
        (["profiles", "explain"], "Missing option '-f'"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/etc/hosts")  # alone it selects nothing
    assert words in fleet.refuses(*arguments)


def test_a_group_without_a_command_shows_its_help(fleet: Fleet) -> None:
    ended = fleet("controlplane")
    assert ended.code == Exit.USAGE
    assert ended.err.startswith("Usage: fleet controlplane")


def test_a_file_that_is_no_text_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_bytes(b"\x00\x01\xff")
    assert "not YAML" in fleet.refuses("profiles", "import", str(path))


def test_help_shows_options_in_groups(fleet: Fleet) -> None:
    """Every option has a word of help and stands under a heading of its own kind."""
    for command in (["spawn"], ["locust", "worker"]):
        shown = fleet.prints(*command, "--help-all").splitlines()
        headings = [line for line in shown if re.fullmatch(r"[A-Z][a-z ]+:", line)]
        assert headings[0] == "Nodes:"
        assert headings[-2:] == ["Options:", "Exit codes:"]
        assert len(headings) == 9
    assert [each.name for each in spawn_parameters() if not each.help] == []


def commands(path: tuple[str, ...] = (), group: click.Group = cli) -> Iterator[tuple[str, ...]]:
    """Yield the path of every command that is no group, and of every group."""
    yield path
    for name, each in group.commands.items():
        here = (*path, name)
        yield from commands(here, each) if isinstance(each, click.Group) else iter([here])


def command_of(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    return command


@pytest.mark.parametrize("path", [*commands()], ids=" ".join)
def test_help_fits_a_terminal_and_says_how_the_command_ends(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, path: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = fleet.prints(*path, "--help")
    assert max(map(len, shown.splitlines())) <= 80
    assert not re.search(r"[a-z]\.\.\.$", shown, re.MULTILINE)  # nothing is cut
    assert "docs/" not in shown  # a wheel has no such pages
    if not isinstance(command_of(path), click.Group):
        codes = re.findall(r"(?m)^  (\d+) +[A-Z]", shown.partition("Exit codes:")[2])
        assert {"0", "2"} <= set(codes)
        assert fleet.prints("help", *path) == shown


def test_the_first_help_shows_what_most_runs_need(fleet: Fleet) -> None:
    assert sum(len(names) for names in SECTIONS.values()) == len(cli.commands)
    few, all_of_them = (
        set(re.findall(r"(?m)^  (?:-., )?(--[a-z-]+)", fleet.prints("spawn", flag)))
        for flag in ("--help", "--help-all")
    )
    assert len(few - {"--help", "--help-all", "--verbose"}) <= 21
    assert few < all_of_them
    assert {"--shard", "--statefulset", "--locust-master"} <= all_of_them - few
    assert {each.opts[-1] for each in spawn_parameters()} <= all_of_them


def examples() -> Iterator[str]:
    for path in commands():
        lines = (command_of(path).help or "").partition(EXAMPLES)[2].splitlines()
        yield from (line.strip() for line in lines if "fleet" in line)


@pytest.mark.parametrize("line", [*examples()])
def test_every_example_of_the_help_is_understood(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    """Its command is there, and has these options."""
    words = shlex.split(re.split(r"  | [>|] |\)$", line[line.index("fleet ") :])[0])
    monkeypatch.chdir(tmp_path)
    Path("deployment.yaml").touch()
    group: click.Command = cli
    assert words.pop(0) == "fleet"
    while isinstance(group, click.Group):
        group = group.commands[words.pop(0)]
    if group.name not in {"master", "users"}:  # the options are Locust's
        with group.make_context(group.name, words, **group.context_settings):
            pass  # it closes files


@pytest.mark.parametrize("command", ["profiles", "scenarios", "faults"])
def test_lists_have_headers_and_other_formats(fleet: Fleet, command: str) -> None:
    found = {form: fleet.prints(command, "list", "-o", form) for form in ("text", "json", "yaml")}
    rows = json.loads(found["json"])
    assert yaml.safe_load(found["yaml"]) == rows
    header, *lines = found["text"].splitlines()
    assert header.split() == [key.upper() for key in rows[0]]
    assert len(lines) == len(rows) > 5
    assert all(row["description"] for row in rows)


def test_rights_are_the_same_objects_in_json(fleet: Fleet) -> None:
    objects = list(yaml.safe_load_all(fleet.prints("rbac", "--user=jane")))
    found = json.loads(fleet.prints("rbac", "--user=jane", "-o", "json"))
    assert (found["kind"], found["items"]) == ("List", objects)


def test_a_shipped_scenario_is_shown_whole(fleet: Fleet) -> None:
    shown = yaml.safe_load(fleet.prints("scenarios", "show", "zone-outage"))
    assert shown["metadata"]["name"] == "zone-outage"
    assert "did you mean 'zone-outage'" in fleet.refuses("scenarios", "show", "zone-outrage")


@pytest.mark.parametrize(("flag", "level"), [("-v", logging.INFO), ("-vv", logging.DEBUG)])
def test_requests_of_fleet_are_logged_when_asked_for(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, flag: str, level: int
) -> None:
    log = logging.getLogger("fleet")
    monkeypatch.setattr(log, "level", logging.WARNING)
    fleet.prints("version", flag)
    assert log.level == level


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_a_shell(fleet: Fleet, shell: str) -> None:
    shown = fleet.prints("completion", shell)
    assert "_FLEET_COMPLETE" in shown
    assert ('split --max 1 ","' in shown) is (shell == "fish")  # help may have commas


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("fleet run zone-", "zone-outage"),
        ("fleet profiles show gp", "gpu"),
        ("fleet inject Node", "NodeDown"),
        ("fleet spawn --fid", "--fidelity"),
        ("fleet spawn --fidelity l", "light"),
        ("fleet contr", "controlplane"),
    ],
)
def test_a_word_is_completed(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, words: str, found: str
) -> None:
    monkeypatch.setenv("_FLEET_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert f"plain,{found}" in fleet().out.splitlines()


def test_the_plan_of_a_run_starts_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("-n", "40", "--profile=default=3", "--profile=gpu", "--duration=90s", "--dry-run")
    plan = json.loads(fleet.prints("spawn", *options, "-o", "json"))
    assert plan["names"] == "fleet-00000 to fleet-00039"
    assert plan["profiles"] == "3 default, 1 gpu"
    assert plan["end"] == "1m30s after all nodes are Ready"
    assert fleet.prints("spawn", *options).splitlines()[0].split() == ["nodes", "40"]
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("fleet.host.machine.available_bytes", lambda: 1 << 20)
    assert "of memory" in fleet.refuses("spawn", "--dry-run", code=Exit.SETUP)


def test_an_extra_is_installed_by_packages_that_are_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "fleet" not in install_command("worker").partition("install")[2]
    words = shlex.split(install_command("locust"))
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    assert words[4].startswith("locust")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)  # as `uv tool install`
    assert shlex.split(install_command("worker"))[:5] == [
        *("uv", "pip", "install", "--python", sys.executable),
    ]


def spawn_parameters() -> list[click.Option]:
    return [
        each
        for each in spawn.get_params(click.Context(spawn))
        if isinstance(each, click.Option) and not each.hidden
    ]


def test_options_are_read_from_variables_too(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_LOCUST_MASTER", "here")
    for command in (["spawn"], ["locust", "worker"]):
        assert "--locust-master: 'here' is not HOST:PORT" in fleet.refuses(*command)
    monkeypatch.setenv("FLEET_LOCUST_MASTER", "here:1")
    monkeypatch.setenv("FLEET_UNTIL_READY", "1")
    monkeypatch.setenv("FLEET_NODES", "")
    assert "the dashboard says when the run ends" in fleet.refuses("spawn")


def test_capacity_reads_the_variables_of_its_runs_but_not_of_the_search(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_MAX_NODES", "3")  # of spawn: what a dashboard may ask for
    assert "Missing option '--max-nodes'" in fleet.refuses("capacity")
    monkeypatch.setenv("FLEET_PROFILE", "no-such-profile")
    assert "no-such-profile" in fleet.refuses("capacity", "--max-nodes=3")


def parsed(*arguments: str) -> dict[str, object]:
    """Return the options of a command as they are read."""
    name, *rest = arguments
    command = cli.commands[name]
    return command.make_context(name, rest, **command.context_settings).params


def test_every_command_reads_the_variables_of_the_options_that_spawn_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"CONTEXT": "c", "FIDELITY": "light", "NODES": "7", "PROFILE": "gpu", "FSYNC": "1"}
    for name, value in given.items():
        monkeypatch.setenv(f"FLEET_{name}", value)
    spawned = {"context": "c", "fidelity": "light", "nodes": 7, "profile": ("gpu",), "fsync": True}
    for command in (["spawn"], ["run", "zone-outage"], ["clean"], ["rbac"]):
        found = parsed(*command)
        shared = spawned.keys() & found.keys()
        assert shared
        assert {name: found[name] for name in shared} == {name: spawned[name] for name in shared}
    assert parsed("rbac", "--nodes=3")["nodes"] == 3  # flag > variable > default
    assert parsed("run", "zone-outage", "--context=d")["context"] == "d"
    up = controlplane.commands["up"]
    assert up.make_context("up", [], **up.context_settings).params["fsync"] is True


def test_no_variable_deletes_skips_or_breaks_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """$FLEET_NODES is a number of nodes, and no name of one that a fault hits."""
    for name in ("ALL", "YES", "EXPIRED", "RUN", "STATEFULSET", "DRY_RUN"):
        monkeypatch.setenv(f"FLEET_{name}", "1")
    monkeypatch.setenv("FLEET_REAL_NODES", "1")
    monkeypatch.setenv("FLEET_NODES", "5000")
    cleaned = parsed("clean")
    assert cleaned.pop("output") == "text"
    assert not any(cleaned.values()), cleaned
    played = parsed("run", "zone-outage")
    assert played["dry_run"] is False
    assert played["real_nodes"] is parsed("capacity", "--max-nodes=1")["real_nodes"] is False
    assert parsed("inject", "NodeDown")["nodes"] is None


def test_a_variable_that_a_scenario_has_no_room_for_is_none_of_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEET_DURATION", "5m")
    fleet.prints("run", "zone-outage", "--dry-run")
    line = fleet.refuses("run", "zone-outage", "--dry-run", "--duration=5m")
    assert "--duration: a scenario says itself" in line


def test_no_control_plane_runs(fleet: Fleet) -> None:
    status = fleet("controlplane", "status")
    assert (status.code, status.out) == (Exit.SETUP, "no control plane is running\n")
    assert fleet.prints("controlplane", "down") == "no control plane was running\n"
    assert json.loads(fleet.prints("controlplane", "down", "-o", "json")) == {"stopped": False}


def test_every_release_is_listed_with_where_it_is_built(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = cache_directory("v1.35.4")
    (built / "bin").mkdir(parents=True)
    for program in (built / PROGRAM, *(built / "bin" / name for name in PROGRAMS)):
        program.write_bytes(bytes(3 << 20))
        program.chmod(0o755)
    header, *lines = [line.split() for line in fleet.prints("controlplane", "list").splitlines()]
    assert header == ["RELEASE", "DEFAULT", "SIZE", "BUILT"]
    assert [release for release, *_ in lines] == [*BUILT.values()]
    assert ["v1.35.4", "-", "3Mi", str(built)] in lines
    assert [line for line in lines if "yes" in line] == [[KUBERNETES_VERSION, "yes", "-", "-"]]


def test_the_help_names_the_releases_that_fleet_builds() -> None:
    words = Settings.model_fields["kubernetes_version"].description
    first, *_, last = BUILT
    assert words is not None
    assert f"{first} to {last} (default: {minor_of(KUBERNETES_VERSION)})" in words


def test_profiles_are_shown_and_described(fleet: Fleet) -> None:
    assert 'nvidia.com/gpu: "8"' in fleet.prints("profiles", "show", "gpu")
    assert json.loads(fleet.prints("profiles", "schema"))


def test_a_terminal_folds_the_last_column_of_a_list(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fleet.prints("faults", "list").splitlines()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    folded = fleet.prints("faults", "list").splitlines()
    assert max(map(len, whole)) > 80 >= max(map(len, folded))
    assert " ".join(folded).split() == " ".join(whole).split()
    left = min(len(line) - len(line.lstrip()) for line in folded if line.startswith(" "))
    assert left == min(whole[0].index("DESCRIPTION"), 40)


def test_a_scenario_is_forecast_for_programs_too(fleet: Fleet) -> None:
    command = ("run", "zone-outage", "--dry-run", "-n5")
    found = json.loads(fleet.prints(*command, "-o", "json"))
    assert [*found["time_line"], *found["forecast"]] == fleet.prints(*command).splitlines()


def test_what_builds_a_control_plane_prints_for_programs_too(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def provided(*_where: object, **_how: object) -> Binaries:
        return Binaries({}, "the cache", KUBERNETES_VERSION)

    monkeypatch.setattr("fleet.controlplane.build.provide_binaries", provided)
    [row] = json.loads(fleet.prints("controlplane", "build", "-o", "json"))
    assert row == {"release": KUBERNETES_VERSION, "source": "the cache"}


def test_keys_without_effect_are_told_beside_the_profile(fleet: Fleet, tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(
        "apiVersion: fleet.emulator/v1alpha1\nkind: NodeProfile\nmetadata: {name: odd}\n"
        "spec: {kubeletConfiguration: {oomScoreAdj: -999, maxPods: 9, cgroupDriver: systemd}}\n"
    )
    told = "warning: profile odd: kubeletConfiguration: without effect: cgroupDriver, oomScoreAdj"
    shown = fleet("profiles", "show", str(path))
    assert shown == (Exit.OK, path.read_text(), f"{told}\n")
    assert load_mix((ProfileChoice(str(path)), ProfileChoice("default"))).warnings == [told]


def test_version_names_the_kubelet(fleet: Fleet) -> None:
    assert f"kubelet {KUBERNETES_VERSION}" in fleet.prints("--version")


def test_sigterm_ends_what_a_shell_started_in_the_background() -> None:
    """Such a shell lets it ignore SIGINT."""
    code = (
        "import asyncio, os, signal\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from fleet.cli import _run\n"
        "async def work():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    await asyncio.sleep(60)\n"
        "try:\n"
        "    _run(work())\n"
        "except KeyboardInterrupt:\n"
        "    print('ended')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "ended\n"
