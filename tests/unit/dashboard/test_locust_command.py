"""Commands of a master and of API users in pods of their own."""

import socket
from pathlib import Path

import pytest

from fleet.dashboard.load_credentials import KUBECONFIG
from fleet.dashboard.locust_master import master_of_its_own, users_of_their_own
from fleet.errors import SetupError, UsageError

LOADS = (Path("api_users"),)
ANY_PORT = {"LOCUST_MASTER_BIND_PORT": "0", "LOCUST_WEB_PORT": "0"}


def test_a_master_listens_on_loopback_unless_told_otherwise() -> None:
    command = master_of_its_own((), ("--users", "5"), ANY_PORT)
    at = command.index("--master-bind-host")
    assert command[at : at + 4] == ["--master-bind-host", "127.0.0.1", "--web-host", "127.0.0.1"]
    assert command[-2:] == ["--users", "5"]
    told = master_of_its_own(
        (), ("--web-host=::",), {**ANY_PORT, "LOCUST_MASTER_BIND_HOST": "0.0.0.0"}
    )
    assert "127.0.0.1" not in told


@pytest.mark.parametrize("flag", ["--master-bind-port", "--web-port"])
def test_a_port_that_is_taken_is_named(flag: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        short = [("-P", port), (f"-P{port}",)] if flag == "--web-port" else []
        for arguments in ((f"{flag}={port}",), ("--users", "5", flag, port), *short):
            with pytest.raises(SetupError, match=f"{flag} {port}: Address already in use"):
                master_of_its_own((), arguments, ANY_PORT)
        variable = f"LOCUST{flag.replace('-', '_').upper()[1:]}"
        with pytest.raises(SetupError, match=f"{flag} {port}: Address already in use"):
            master_of_its_own((), (), {**ANY_PORT, variable: port})
        if flag == "--web-port":  # which a headless master does not open
            master_of_its_own((), ("--headless", flag, port), ANY_PORT)


def test_master_and_users_load_the_same_files(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: k}}]\n"
        "clusters: [{name: k, cluster: {server: 'https://here'}}]\n"
    )
    users = users_of_their_own(LOADS, (), {KUBECONFIG: str(kubeconfig)})
    master = master_of_its_own(LOADS, (), ANY_PORT)
    files = users[users.index("-f") + 1]
    assert [Path(each).name for each in files.split(",")] == ["locustfile.py", "api_users.py"]
    assert files in master
    assert users[-1] == "--worker"


def test_users_without_a_load_or_a_cluster_are_refused() -> None:
    with pytest.raises(UsageError, match="name a locustfile, or api_users"):
        users_of_their_own((), (), {})
    with pytest.raises(UsageError, match=f"set {KUBECONFIG} to the kubeconfig"):
        users_of_their_own(LOADS, (), {})
    with pytest.raises(UsageError, match="/nowhere is no kubeconfig"):
        users_of_their_own(LOADS, (), {KUBECONFIG: "/nowhere"})
