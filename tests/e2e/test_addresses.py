"""An API server behind a name: of its addresses some are dead."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from e2e import named_fleet
from e2e.e2e_world import WAIT_MAX_S, World
from e2e.lateness import assert_done

pytest_plugins = ("e2e.e2e_fixtures",)
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PREFIX = "named"
DEAD = "127.0.0.2"


def test_a_dead_address_does_not_stop_a_fleet(world: World, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    document = yaml.safe_load(world.info.token_kubeconfig.read_text())
    cluster = document["clusters"][0]["cluster"]
    port = cluster["server"].rpartition(":")[2]
    cluster |= {"server": f"https://{named_fleet.NAME}:{port}", "tls-server-name": "localhost"}
    kubeconfig.write_text(yaml.safe_dump(document))
    command = (
        *(sys.executable, named_fleet.__file__, "spawn", f"--name-prefix={PREFIX}", "--nodes=5"),
        *(f"--kubeconfig={kubeconfig}", f"--confirm-cluster={document['current-context']}"),
        *("--until-ready", world.quick()),
    )
    done = subprocess.run(
        command,
        cwd=world.root,
        env={**os.environ, named_fleet.ADDRESSES: f"{DEAD} 127.0.0.1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=2 * WAIT_MAX_S,
        check=False,
    )
    assert "all 5 nodes are Ready" in done.stderr, done.stderr
    assert "connection refused" not in done.stderr
    assert_done(done.returncode, done.stdout, done.stderr)
    world.assert_nothing_left(PREFIX)
