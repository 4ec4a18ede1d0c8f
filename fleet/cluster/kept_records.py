"""Records of a run that outlive it in the cluster: a ConfigMap for each start of a shard.

    label       fleet.emulator/record-of: the id of the run
    annotation  fleet.emulator/owner: RUN/default/NAME, of the very object

A shard writes its ConfigMap over every 30 s, and whole at its end. They stay when the nodes of the
run are removed: `fleet report --run` reads them, and `fleet clean` removes them. Files in them are
compressed; what does not fit into one is thinned by who makes it.
"""

import base64
import gzip
import zlib
from collections.abc import Mapping

from fleet.cluster.api_client import METADATA_ONLY, Answer, Api, Json, expect
from fleet.cluster.identity import RUN_NAMESPACE, Permission
from fleet.cluster.leftovers import Leftover, is_marked, labelled, object_mark
from fleet.cluster.ownership import OWNER_ANNOTATION
from fleet.errors import SetupError

RECORD_OF = "fleet.emulator/record-of"
CONFIG_MAPS = f"/api/v1/namespaces/{RUN_NAMESPACE}/configmaps"
BYTES_MAX = 700_000
"""Of all files of a ConfigMap, compressed: with base64 it is less than 1 MiB."""
UNPACKED_MAX = 256 << 20
SUFFIX = ".gz"


def record_name(run: str, shard: int, began_s: float) -> str:
    """Return the name of the ConfigMap of one start of a shard."""
    return f"fleet-record-{run}-{shard:04d}-{int(began_s):x}"


async def keep_record(
    api: Api, run: str, name: str, files: Mapping[str, bytes], uid: str = ""
) -> str:
    """Write the record, and return the uid of its ConfigMap, with which the next one replaces it.

    `files` are compressed. Raises SetupError, also if a ConfigMap of that name is somebody else's.
    """
    path = f"{CONFIG_MAPS}/{name}"
    metadata: Json = {
        "name": name,
        "labels": {RECORD_OF: run},
        "annotations": {OWNER_ANNOTATION: object_mark(run, RUN_NAMESPACE, name)},
    }
    body: Json = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "binaryData": {
            f"{file}{SUFFIX}": base64.b64encode(content).decode() for file, content in files.items()
        },
    }

    async def replace(uid: str) -> Answer:
        return await api.request("PUT", path, body=body | {"metadata": metadata | {"uid": uid}})

    # Of an object that is gone, or that is another one by now, the server says 404 or 409.
    answer = await replace(uid) if uid else None
    if answer is None or answer.code in (404, 409):
        answer = await api.request("POST", CONFIG_MAPS, body=body)
    if answer.code == 409:  # the answer to an earlier POST was lost, if it is ours
        own = [each for each in await find_records(api, run) if each.path == path]
        if not own:
            raise SetupError(f"ConfigMap {RUN_NAMESPACE}/{name} is not one of run {run}: it stays")
        answer = await replace(own[0].uid)
    return str(expect(answer, f"cannot keep the record {name}")["metadata"]["uid"])


async def find_records(api: Api, run: str = "") -> list[Leftover]:
    """Return the records of a run, or of all; nothing if we may not list them."""
    right = Permission("list", "", "configmaps", namespace=RUN_NAMESPACE)
    return [
        Leftover(f"{CONFIG_MAPS}/{metadata['name']}", metadata["uid"], of)
        async for of, item in labelled(api, CONFIG_MAPS, right, RECORD_OF, run, METADATA_ONLY)
        if is_marked(metadata := item["metadata"], of, RUN_NAMESPACE)
    ]


async def read_records(api: Api, run: str) -> dict[str, dict[str, bytes]]:
    """Return the files of each record of a run by its name. Raises SetupError."""
    found: dict[str, dict[str, bytes]] = {}
    async for page in api.pages(CONFIG_MAPS, "records", labelSelector=f"{RECORD_OF}={run}"):
        for item in filter(lambda each: is_marked(each["metadata"], run, RUN_NAMESPACE), page):
            name, files = item["metadata"]["name"], item.get("binaryData") or {}
            found[name] = {
                file.removesuffix(SUFFIX): _unpacked(name, text) for file, text in files.items()
            }
    return found


def _unpacked(name: str, text: str) -> bytes:
    try:
        unpacking = zlib.decompressobj(wbits=31)
        content = unpacking.decompress(base64.b64decode(text), UNPACKED_MAX)
    except (ValueError, zlib.error) as error:
        raise SetupError(f"ConfigMap {RUN_NAMESPACE}/{name} is no record: {error}") from error
    return content


def packed(content: bytes) -> bytes:
    """Return a file as a ConfigMap has it."""
    return gzip.compress(content, mtime=0)
