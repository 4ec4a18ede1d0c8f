"""Two traces against each other: what differs, as lines, and which lines are listed."""

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path

from audit_trace import GENERATED, Request

RENEWAL_S = (9.9, 11.4)
"""A Lease is renewed every 10 s x U[1, 1.04], here with a second for a busy machine."""
OFFSET_MAX_S = 3.5
"""By how much chance can part the two: a relist, a sync tick, a start time cut to its second, each
up to a second; and a busy machine."""
RENEWAL = "update leases"
EITHER = {True: "hollow", False: "fleet"}


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry of differences.toml."""

    match: str
    """A regular expression for whole lines."""
    reason: str
    source: str


def read_listed(path: Path) -> list[Listed]:
    """Read what may differ."""
    entries = tomllib.loads(path.read_text())["difference"]
    return [Listed(each["match"], each["reason"], each["source"]) for each in entries]


def judge(lines: Sequence[str], listed: Sequence[Listed]) -> list[str]:
    """Return what is wrong: a difference that is not listed, or an entry that nothing matches."""
    unlisted = [
        line for line in lines if not any(re.fullmatch(each.match, line) for each in listed)
    ]
    unused = [
        each.match for each in listed if not any(re.fullmatch(each.match, line) for line in lines)
    ]
    return [f"not listed: {line}" for line in unlisted] + [f"unused: {each}" for each in unused]


def compare(
    hollow: Sequence[Request], fleet: Sequence[Request], steps: Sequence[float]
) -> list[str]:
    """Return how two traces differ, each difference once; `steps` are when the script went on."""
    lines: list[str] = []
    for one, other in _pairs(streams(hollow), streams(fleet)):
        lines += _compare_stream(one, other)
    lines += _offsets(hollow, fleet, steps)
    for is_hollow in (True, False):
        lines += _late(hollow if is_hollow else fleet, EITHER[is_hollow])
    agents = [sorted({each.agent for each in requests}) for requests in (hollow, fleet)]
    if agents[0] != agents[1]:
        lines.append(f"user agent: hollow {agents[0]}, fleet {agents[1]}")
    return list(dict.fromkeys(lines))


def streams(requests: Sequence[Request]) -> dict[str, list[Request]]:
    """Sort requests by what they are about; objects with a made-up name by their order."""
    by_name: dict[str, list[Request]] = {}
    for each in requests:
        by_name.setdefault(each.stream, []).append(each)
    found: dict[str, list[Request]] = {}
    for name, stream in by_name.items():
        plain = GENERATED.sub("-X", name) if name.startswith("pods ") else name
        count = sum(key.partition("#")[0] == plain for key in found)
        found[f"{plain}#{count}" if plain != name else name] = fold(stream)
    return found


def fold(stream: Sequence[Request]) -> list[Request]:
    """Leave out reads of pods that changed nothing, repeated renewals and reads of the Node."""
    if all(each.verb == "watch" for each in stream):
        return sorted(stream, key=lambda each: each.token)  # new or resumed, as pods overlap
    kept: list[Request] = []
    for each in stream:
        if kept and each.token == kept[-1].token:
            if each.token.startswith((RENEWAL, "get nodes ")):
                continue
            if each.token.startswith("get pods "):
                kept.pop()
        kept.append(each)
    while kept and kept[-1].token.startswith("get pods "):
        kept.pop()  # of a pod that stays as it is
    return kept


def _pairs(
    hollow: dict[str, list[Request]], fleet: dict[str, list[Request]]
) -> Iterator[tuple[list[Request], list[Request]]]:
    for name in dict.fromkeys((*hollow, *fleet)):
        yield hollow.get(name, []), fleet.get(name, [])


def _compare_stream(hollow: list[Request], fleet: list[Request]) -> list[str]:
    lines = []
    for tag, ours, theirs in _aligned(hollow, fleet):
        if tag == "equal":
            for one, other in zip(ours, theirs, strict=True):
                lines += _compare_bodies(one, other)
            continue
        lines += [f"only hollow: {each.token}" for each in ours]
        lines += [f"only fleet: {each.token}" for each in theirs]
    return lines


def _aligned(
    hollow: list[Request], fleet: list[Request]
) -> Iterator[tuple[str, list[Request], list[Request]]]:
    one, other = ([each.token for each in requests] for requests in (hollow, fleet))
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    for tag, start, end, start2, end2 in matcher.get_opcodes():
        yield tag, hollow[start:end], fleet[start2:end2]


def _compare_bodies(hollow: Request, fleet: Request) -> list[str]:
    what = hollow.token
    return [
        *(f"body only hollow: {what}: {path}" for path in sorted(hollow.body - fleet.body)),
        *(f"body only fleet: {what}: {path}" for path in sorted(fleet.body - hollow.body)),
    ]


def _offsets(
    hollow: Sequence[Request], fleet: Sequence[Request], steps: Sequence[float]
) -> list[str]:
    """Compare when requests were sent: about the node since its start, about pods since a step."""

    def offset(request: Request, start_s: float) -> float:
        if not request.is_namespaced:
            return request.at_s - start_s
        return request.at_s - steps[max(0, bisect_right(steps, request.at_s) - 1)]

    starts = hollow[0].at_s, fleet[0].at_s
    lines = []
    for one, other in _pairs(streams(hollow), streams(fleet)):
        for tag, ours, theirs in _aligned(one, other):
            for first, second in zip(ours, theirs, strict=True) if tag == "equal" else ():
                late_s = offset(second, starts[1]) - offset(first, starts[0])
                if abs(late_s) > OFFSET_MAX_S:
                    word = "later" if late_s > 0 else "sooner"
                    lines.append(f"time: fleet {word} by {abs(late_s):.1f} s: {first.token}")
    return lines


def _late(requests: Sequence[Request], who: str) -> list[str]:
    """Return the renewals that came too soon or too late."""
    times = [each.at_s for each in requests if each.token.startswith(RENEWAL)]
    return [
        f"time: {who} renewed its Lease after {after - before:.1f} s"
        for before, after in pairwise(times)
        if not RENEWAL_S[0] <= after - before <= RENEWAL_S[1]
    ]
