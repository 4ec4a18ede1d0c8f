"""What is kept of pods so that others of their template share it has an end in bytes."""

import orjson
import pytest

from fleet.k8s.pod_template import decode_spec
from fleet.wire.api import decode_protobuf
from fleet.wire.api.decode_pod import SPECS_BYTES_MAX, SpecTable
from fleet.wire.api.protobuf import contents, object_from_json

SPEC = {"containers": [{"name": "c", "image": "nginx:1"}]}


def test_specs_of_hostile_pods_do_not_fill_the_table() -> None:
    table = SpecTable()
    spec = decode_spec(orjson.loads(orjson.dumps(SPEC)), 1)
    for number in range(100):
        raw = b"%d" % number + b"x" * (SPECS_BYTES_MAX // 10)
        assert table.keep(raw, spec) is spec
        assert table.get(raw) is spec
        assert len(table) <= 10


def test_long_annotations_are_read_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_protobuf, "SHARED_NOTES_BYTES_MAX", 100)
    before = decode_protobuf._notes.cache_info().currsize
    for number in range(5):
        notes = {"fleet.emulator/exit-reason": "x" * 200 + str(number)}
        meta = {"name": "web", "namespace": "default", "uid": "u", "annotations": notes}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": SPEC, "status": {}}
        raw = object_from_json(pod)
        found = decode_protobuf.decode_pod(contents(raw))
        assert dict(found.annotations) == notes
    assert decode_protobuf._notes.cache_info().currsize == before
