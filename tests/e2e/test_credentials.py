"""Credentials that a plugin gives and, for a while, does not."""

from pathlib import Path

import pytest
import yaml

from e2e.e2e_world import World

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "plugin"
FOREVER = "2199-01-01T00:00:00Z"


class Plugin:
    """A program that gives the administrator's token, except when it is throttled."""

    def __init__(self, world: World, directory: Path, *, expires_s: int, fails: str) -> None:
        self.runs = directory / "runs"
        self.kubeconfig = directory / "kubeconfig"
        document = yaml.safe_load(world.info.token_kubeconfig.read_text())
        token = document["users"][0]["user"]["token"]
        path = directory / "plugin"
        path.write_text(
            f"""#!/bin/sh
echo run >> {self.runs}
n=$(wc -l < {self.runs})
if {fails}; then echo "429 slow down" >&2; exit 1; fi
if [ "$n" -eq 1 ]; then
  expires=$(date -u -d "@$(($(date +%s) + {expires_s}))" +%Y-%m-%dT%H:%M:%SZ)
else expires={FOREVER}; fi
cat <<END
{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
 "status": {{"token": "{token}", "expirationTimestamp": "$expires"}}}}
END
"""
        )
        path.chmod(0o755)
        version = "client.authentication.k8s.io/v1"
        user = {"exec": {"command": str(path), "apiVersion": version, "args": None, "env": None}}
        document["users"][0]["user"] = user
        self.kubeconfig.write_text(yaml.safe_dump(document))
        self.options = (
            f"--kubeconfig={self.kubeconfig}",
            f"--confirm-cluster={document['current-context']}",
        )

    @property
    def asked(self) -> int:
        return len(self.runs.read_text().split())


@pytest.mark.slow
def test_a_plugin_that_fails_three_times_is_asked_a_fourth_time(
    world: World, tmp_path: Path
) -> None:
    fails = '[ "$n" -gt 1 ] && [ "$n" -le 4 ]'
    plugin = Plugin(world, tmp_path, expires_s=280, fails=fails)  # which is soon: within 5 min
    with world.spawn(PREFIX, 3, world.quick(), *plugin.options) as run:
        run.until_ready()
        run.until("credentials: renewed, after 3 failures")
        assert "429 slow down" in run.log
        run.end_well_or_late()
    assert plugin.asked == 5
    world.assert_nothing_left(PREFIX)


def test_a_run_whose_credentials_ran_out_says_so_and_cleans_up_with_new_ones(
    world: World, tmp_path: Path
) -> None:
    over = tmp_path / "over"
    fails = f'[ "$n" -gt 1 ] && [ ! -e {over} ]'
    plugin = Plugin(world, tmp_path, expires_s=20, fails=fails)
    with world.spawn(PREFIX, 3, world.quick(), *plugin.options) as run:
        run.until("have run out and cannot be renewed: ")
        over.touch()
        run.until("credentials: renewed, after")
        run.interrupt()
        printed, _ = run.process.communicate(timeout=240)
    assert run.process.returncode == 4, run.log
    assert "fleet had no valid credentials for some time" in printed
    world.assert_nothing_left(PREFIX)
