"""What each encoding costs in the process of the nodes, without the network.

The pods are as an API server 1.36.3 sent them, managed fields and all: two containers with probes,
environment and volumes, of a Deployment; one that the scheduler has just bound, one that runs.
Run: python -m bench.encoding
"""

import re
import timeit
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import orjson

from fleet.k8s.effects import ApiCall, LeaseRenewal, NodeId, Op
from fleet.profile.loader import load_mix
from fleet.wire.api import codec
from fleet.wire.api.decode_pod import decode_pod as decode_json_pod
from fleet.wire.api.decode_protobuf import CACHED_MAX
from fleet.wire.api.decode_protobuf import decode_pod as decode_protobuf_pod
from fleet.wire.api.operations import build
from fleet.wire.api.protobuf import object_from_json
from fleet.wire.api.requests import Caller, RenderedProfile

PODS = Path(__file__).parent / "pods"
RUNS = 100
REPEATS = 200
SECOND_NS = 1_000_000_000
LEASE = {
    "kind": "Lease",
    "apiVersion": "coordination.k8s.io/v1",
    "metadata": {"name": "n-0", "namespace": "kube-node-lease", "resourceVersion": "1"},
    "spec": {"holderIdentity": "n-0", "renewTime": "2026-01-01T00:00:00.123456Z"},
}


def best_us(call: Callable[[], object]) -> float:
    """Return the least time of one call, in microseconds."""
    return min(timeit.repeat(call, number=RUNS, repeat=REPEATS)) / RUNS * 1e6


def renewal_us(chosen: codec.Codec, base: bytes) -> float:
    """Return what the body of a renewal costs, at times of either length."""
    template = RenderedProfile(load_mix().model_of(0), extra_labels={})
    caller = Caller(0, b"n-0", template)
    times = [1_800_000_000 * SECOND_NS + each * 7_919_000 for each in range(100)]
    calls = [ApiCall(NodeId(0), Op.RENEW_LEASE, "", LeaseRenewal(base, each)) for each in times]
    return best_us(lambda: [build(each, caller, chosen.operations) for each in calls]) / len(calls)


def main() -> None:
    """Print a table."""
    for name in ("bound", "running"):
        as_json, raw = (PODS / f"{name}.json").read_bytes(), (PODS / f"{name}.pb").read_bytes()
        assert decode_json_pod(as_json).status == decode_protobuf_pod(raw).status
        found = re.search(b"containerd://([0-9a-f]{64})", raw)
        ids = [b"%064x" % number for number in range(2 * CACHED_MAX)] if found else [b""]
        others = cycle([raw.replace(found[1], each) if found else raw for each in ids])
        print(
            f"decode a {name} pod: json {len(as_json)} bytes, "
            f"{best_us(lambda: decode_json_pod(as_json)):.1f} us; protobuf {len(raw)} bytes, "  # noqa: B023
            f"{best_us(lambda: decode_protobuf_pod(next(others))):.1f} us"  # noqa: B023
        )
    renewals = (
        renewal_us(codec.JSON, orjson.dumps(LEASE)),
        renewal_us(codec.protobuf(), object_from_json(LEASE)),
    )
    print("build a renewal: json {:.1f} us, protobuf {:.1f} us".format(*renewals))


if __name__ == "__main__":
    main()
