"""The command line: every foreseen failure is one line and a documented exit code."""

import json
import re
import sys
from pathlib import Path

import click
import pytest

from fleet import KUBERNETES_VERSION
from fleet.cli import cli, controlplane, main, spawn
from fleet.controlplane.binaries import PROGRAM, PROGRAMS, cache_directory, minor_of, releases
from fleet.errors import Exit
from fleet.profile.loader import load_mix
from fleet.profile.option_types import ProfileChoice
from fleet.profile.settings import Settings


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fleet", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["spawn", "--nods", "5"], "No such option '--nods'"),
        (["spawn", "--nodes", "x"], "'x' is not a valid integer"),
        (["spawn", "--nodes", "-3"], "--nodes: -3: input should be greater than or equal to 1"),
        (["spawn", "--nodes", "1e9"], "--nodes"),
        (["spawn", "--nodes", "0"], "--nodes: 0"),
        (["spawn", "--nodes", "100001"], "--nodes: 100001"),
        (["spawn", "--profile", "default=0"], "the weight '0' is not a number above 0"),
        (["spawn", "--profile", "./no-such.yaml"], "no-such.yaml"),
        (["spawn", "--name-prefix", "a" * 60], "shorten the prefix"),
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
        (
            ["spawn", "--identity=csr", "--bootstrap-kubeconfig=/no/such"],
            "--bootstrap-kubeconfig /no/such: no such file",
        ),
        (["swarm"], "No such command 'swarm'"),
        (["clean", "--all", "--expired"], "--run, --all and --expired exclude one another"),
        (["profiles", "show", "nothing"], "nothing"),
        (["profiles", "explain", "-f", "/no/such"], "'/no/such': No such file or directory"),
        (["profiles", "explain"], "Missing option '-f'"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    assert call(monkeypatch, *arguments) == Exit.USAGE
    printed = capsys.readouterr()
    assert not printed.out
    [line] = printed.err.splitlines()
    assert line.startswith("fleet: ")
    assert words in line


def test_a_file_that_is_no_text_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "node.yaml"
    path.write_bytes(b"\x00\x01\xff")
    assert call(monkeypatch, "profiles", "import", str(path)) == Exit.USAGE
    [line] = capsys.readouterr().err.splitlines()
    assert "not YAML" in line


def test_help_shows_options_in_groups(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every option has a word of help and stands under a heading of its own kind."""
    for command in (["spawn"], ["locust", "worker"]):
        assert call(monkeypatch, *command, "--help") == Exit.OK
        printed = capsys.readouterr().out
        headings = [line for line in printed.splitlines() if re.fullmatch(r"[A-Z][a-z ]+:", line)]
        assert headings[0] == "Nodes:"
        assert headings[-1] == "Options:"
        assert len(headings) == 8
    assert [each.name for each in spawn_parameters() if not each.help] == []


def spawn_parameters() -> list[click.Option]:
    return [
        each
        for each in spawn.get_params(click.Context(spawn))
        if isinstance(each, click.Option) and not each.hidden
    ]


def test_options_are_read_from_variables_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLEET_LOCUST_MASTER", "here")
    for command in (["spawn"], ["locust", "worker"]):
        assert call(monkeypatch, *command) == Exit.USAGE
        assert "--locust-master: 'here' is not HOST:PORT" in capsys.readouterr().err
    monkeypatch.setenv("FLEET_LOCUST_MASTER", "here:1")
    monkeypatch.setenv("FLEET_UNTIL_READY", "1")
    assert call(monkeypatch, "spawn") == Exit.USAGE
    assert "the dashboard says when the run ends" in capsys.readouterr().err


def test_capacity_reads_the_variables_of_its_runs_but_not_of_the_search(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLEET_MAX_NODES", "3")  # of spawn: what a dashboard may ask for
    assert call(monkeypatch, "capacity") == Exit.USAGE
    assert "Missing option '--max-nodes'" in capsys.readouterr().err
    monkeypatch.setenv("FLEET_PROFILE", "no-such-profile")
    assert call(monkeypatch, "capacity", "--max-nodes=3") == Exit.USAGE
    assert "no-such-profile" in capsys.readouterr().err


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
    assert not any(cleaned.values()), cleaned
    played = parsed("run", "zone-outage")
    assert played["is_dry"] is False
    assert played["real_nodes"] is parsed("capacity", "--max-nodes=1")["real_nodes"] is False
    assert parsed("inject", "NodeDown")["nodes"] is None


def test_a_variable_that_a_scenario_has_no_room_for_is_none_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLEET_DURATION", "5m")
    assert call(monkeypatch, "run", "zone-outage", "--dry-run") == Exit.OK
    assert call(monkeypatch, "run", "zone-outage", "--dry-run", "--duration=5m") == Exit.USAGE
    assert "--duration: a scenario says itself" in capsys.readouterr().err


def test_the_order_of_flags_variables_and_defaults_is_in_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "--help") == Exit.OK
    words = " ".join(capsys.readouterr().out.split())
    assert "A flag overrides its variable, and a variable overrides the default." in words


def test_without_a_cluster_clean_has_nothing_to_look_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/no/such/directory")
    monkeypatch.setenv("KUBECONFIG", "/etc/hosts")  # alone it selects nothing
    assert call(monkeypatch, "clean") == Exit.USAGE
    assert "name a cluster with --kubeconfig" in capsys.readouterr().err


def test_no_control_plane_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/no/such/directory")
    assert call(monkeypatch, "controlplane", "status") == Exit.SETUP
    assert call(monkeypatch, "controlplane", "down") == Exit.OK
    assert capsys.readouterr().out.splitlines() == [
        "no control plane is running",
        "no control plane was running",
    ]


def test_every_release_is_listed_with_where_it_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = cache_directory("v1.35.4")
    (built / "bin").mkdir(parents=True)
    for program in (built / PROGRAM, *(built / "bin" / name for name in PROGRAMS)):
        program.write_bytes(bytes(3 << 20))
        program.chmod(0o755)
    assert call(monkeypatch, "controlplane", "list") == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*releases().values()]
    assert [line for line in lines if "not built" not in line] == [
        f"v1.35.4            3 MiB in {built}"
    ]
    assert [line.split()[0] for line in lines if "default" in line] == [KUBERNETES_VERSION]


def test_the_help_names_the_releases_that_fleet_builds() -> None:
    words = Settings.model_fields["kubernetes_version"].description
    first, *_, last = releases()
    assert words is not None
    assert f"{first} to {last} (default: {minor_of(KUBERNETES_VERSION)})" in words


def test_profiles_are_listed_shown_and_described(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "profiles", "list") == Exit.OK
    names = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert {"default", "gpu", "arm64", "large"} <= names
    assert call(monkeypatch, "profiles", "show", "gpu") == Exit.OK
    assert 'nvidia.com/gpu: "8"' in capsys.readouterr().out
    assert call(monkeypatch, "profiles", "schema") == Exit.OK
    assert json.loads(capsys.readouterr().out)


def test_keys_without_effect_are_told_beside_the_profile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(
        "apiVersion: fleet.emulator/v1alpha1\nkind: NodeProfile\nmetadata: {name: odd}\n"
        "spec: {kubeletConfiguration: {oomScoreAdj: -999, maxPods: 9, cgroupDriver: systemd}}\n"
    )
    assert call(monkeypatch, "profiles", "show", str(path)) == Exit.OK
    told = "warning: profile odd: kubeletConfiguration: without effect: cgroupDriver, oomScoreAdj"
    shown = capsys.readouterr()
    assert shown.out == path.read_text()
    assert shown.err == f"{told}\n"
    assert load_mix((ProfileChoice(str(path)), ProfileChoice("default"))).warnings == [told]


def test_help_and_version_need_no_library(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "spawn", "--help") == Exit.OK
    shown = capsys.readouterr().out
    for option in ("--nodes", "--until-ready", "--confirm-cluster", "--no-taint", "--manage"):
        assert option in shown
    assert call(monkeypatch, "--version") == Exit.OK
    assert "kubelet v1.36.3" in capsys.readouterr().out
