"""`fleet inject` and `fleet heal`: what they ask of a run, and how its answer is shown."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from fleet.errors import FleetError, UsageError
from fleet.faults.fault import FAULTS, FaultSpec, document_of
from fleet.profile.schema import explain
from fleet.quantity import parse_positive_duration, parse_share
from fleet.run.fault_control import FaultControl, reach_words
from fleet.run.fault_socket import Json, ask, find_run

_PLAIN = (
    *("zone", "by", "every", "mode", "reason", "message", "component"),
    *("resource", "count", "condition", "status"),
)
SELECTOR_HINT = "KEY=VALUE[,KEY=VALUE...]"


def order_of(kind: str, given: Mapping[str, object]) -> Json:
    """Return the order for a fault as the options describe it. Raises UsageError."""
    known = [each.value for each in FAULTS]
    if kind not in known:
        raise UsageError(f"{kind!r} is no fault; these are: {', '.join(known)}")
    try:
        spec = FaultSpec.model_validate({"type": kind, **_fault(given)})
    except ValidationError as error:
        raise UsageError(explain(error, FaultSpec)) from error
    order: Json = {"do": "inject", "fault": document_of(spec)}
    if given["for_"] is not None:
        if spec.is_instant:
            raise UsageError(f"--for: {kind} is over at once")
        try:
            _check_duration(given["for_"])
        except ValueError as error:
            raise UsageError(f"--for: {error}") from error
        order["for"] = given["for_"]
    return order


def _fault(given: Mapping[str, object]) -> Json:
    """Return what the options say, as a file would."""
    fault: Json = {}
    if given["selector"] is not None:
        fault["nodeSelector"] = {"matchLabels": _labels(str(given["selector"]))}
    for key in _PLAIN:
        if given[key] is not None:
            fault[key] = given[key]
    for key in ("nodes", "heartbeats"):
        if given[key] is not None:
            fault[key] = str(given[key]).split(",")
    if given["share"] is not None:
        fault["share"] = _share(str(given["share"]))
    return fault


def _check_duration(text: object) -> None:
    if not parse_positive_duration(text):
        raise ValueError(f"{text!r} must be above 0s")


def _labels(text: str) -> dict[str, str]:
    pairs = [each.partition("=") for each in text.split(",")]
    if not all(key and equals for key, equals, _ in pairs):
        raise UsageError(f"--selector: {text!r} is not {SELECTOR_HINT}")
    return {key: value for key, _, value in pairs}


def _share(text: str) -> float:
    try:
        return parse_share(text)
    except ValueError as error:
        raise UsageError(f"--share: {error}") from None


async def inject(directory: Path | None, order: Json) -> str:
    """Have a run do it; return what to print."""
    return _injected(order, await ask(find_run(directory), order))


async def heal(directory: Path | None, what: str, *, is_all: bool) -> str:
    """Heal faults of a run; without a word which ones, return what is on."""
    if what and is_all:
        raise UsageError("name one fault, or --all of them")
    run = find_run(directory)
    if what or is_all:
        answer = await ask(run, {"do": "heal", "what": what})
        healed: Sequence[Json] = answer["healed"]
        if not healed:
            return "no fault is on"
        return "\n".join(map(_healed, healed))
    active: Sequence[Json] = (await ask(run, {"do": "list"}))["active"]
    if not active:
        return "no fault is on"
    return "\n".join(map(_line, active))


class FaultForms:
    """Takes what a form of the dashboard asks; its fields are those of the command line."""

    def __init__(self, control: FaultControl) -> None:
        self._control = control

    def on(self) -> list[Json]:
        """Return what is on; see `FaultControl`."""
        return self._control.on()

    async def answer(self, order: Json) -> Json:
        """Carry one out; return what to show, as `told` or `error`."""
        try:
            if order["do"] == "inject":
                given = defaultdict(lambda: None, order["form"])
                given["for_"] = given.pop("for", None)
                order = order_of(str(given["type"]), given)
            answer = await self._control.answer(order)
        except FleetError as error:
            return {"error": str(error).removeprefix("--")}
        if "error" in answer:
            return {"error": answer["error"]}
        if "healed" in answer:
            return {"told": ", ".join(map(_healed, answer["healed"])) or "no fault is on"}
        return {"told": _injected(order, answer)}


def _injected(order: Json, answer: Json) -> str:
    until = "" if "for" not in order else f" for {order['for']}"
    hit = reach_words(answer["nodes"], answer["of"])
    return f"fault {answer['number']}: {answer['fault']}{hit}{until}"


def _healed(each: Json) -> str:
    return f"fault {each['number']}: {each['fault']} is healed"


def _line(each: Json) -> str:
    left = "until it is healed" if each["left_s"] is None else f"{each['left_s']:.0f} s to go"
    hit = reach_words(each["nodes"], each["of"]).removeprefix(" on ")
    return f"{each['number']:>3}  {each['fault']:24} {hit:20} on for {each['for_s']:.0f} s, {left}"
