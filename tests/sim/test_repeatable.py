"""Same seed, same trace, byte for byte: also in another process with another hash seed."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from world.sim_faults import ConnectionsDropped, ConnectionsRefused, VersionsExpired
from world.simulation import ENCODING, Simulation

pytest_plugins = ("sim_encodings",)

HERE = Path(__file__).parent


def digest(seed: int, *, light: bool = False) -> str:
    """Return a digest of everything that was sent in a run with a bit of everything."""
    sim = Simulation(nodes=8, seed=seed, light=light, monitored=True).run_for(seconds=20)
    for index in range(16):
        command = ["sleep", "7"] if index % 3 == 0 else ["serve"]
        policy = "Never" if index % 2 else "Always"
        sim.create_pod(f"pod-{index}", f"n-{index % 8}", command=command, restartPolicy=policy)
    sim.run_for(seconds=10)
    sim.inject(ConnectionsDropped())
    sim.run_for(seconds=10)
    sim.inject(VersionsExpired())
    sim.inject(ConnectionsRefused(), seconds=5)
    for index in range(0, 16, 4):
        if sim.phase(f"pod-{index}"):
            sim.server.delete_pod(f"pod-{index}")
    sim.run_for(seconds=90)
    text = "\n".join(map(str, sim.trace)) + str(sorted(sim.server.objects.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_same_seed_gives_the_same_trace() -> None:
    assert digest(5) == digest(5)
    assert digest(5, light=True) == digest(5, light=True)
    assert digest(5) != digest(6)


def test_processes_with_other_hash_seeds_agree() -> None:
    code = (
        "from world.simulation import ENCODING; from test_repeatable import digest;"
        f"ENCODING.set({ENCODING.get()!r}); print(digest(5), digest(5, light=True))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ
            | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}"},
            capture_output=True,
            check=True,
            text=True,
            cwd=HERE.parent.parent,
        ).stdout.splitlines()[-1]
        for hash_seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert found[0] == f"{digest(5)} {digest(5, light=True)}"
