"""The types of options: how each is read from what stands on the command line.

What an option is for, and which go together, is said in `settings`.
"""

import contextlib
import math
import platform
import re
from fractions import Fraction
from typing import Annotated, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, StringConstraints

from fleet.errors import UsageError
from fleet.profile.host_names import host_name
from fleet.profile.schema import PLACEHOLDER, RUN_ID_PATTERN, check_placeholders
from fleet.quantity import parse_positive_duration, parse_share


class Shown(NamedTuple):
    """What the help of an option says of its value, and where else the value comes from."""

    metavar: str | None = None
    variable: str | None = ""
    """"" is the usual one, $FLEET_ and the name; help shows another one; None: there is none."""
    is_hidden: bool = False


SHARDS_MAX = 10_000  # shards have four digits
PROFILE_PERIOD_MAX = 10_000
"""The nodes after which a weighted mix repeats; finer weights are refused."""
RATE_MAX = "max"  # as a rate: all nodes at once


class ProfileChoice(NamedTuple):
    """One `--profile`: a shipped name or a file, and how many of the nodes it gets."""

    source: str
    weight: int = 1

    def __str__(self) -> str:
        return f"{self.source}={self.weight}"


class StopRules(NamedTuple):
    """When a run ends because the API server is sick; a duration of 0 turns a rule off."""

    readyz_ns: int = 0  # `/readyz` is red for so long
    errors_share: float = 0.0
    errors_ns: int = 0  # more than that share of the answers are 429 or 5xx for so long

    @property
    def are_on(self) -> bool:
        return bool(self.readyz_ns or self.errors_ns)


PROVIDER_ID_NONE = "none"
PROVIDER_ID_FLEET = "fleet"
FLEET_PROVIDER_ID = "fleet://{{zone}}/{{name}}"
NEVER = "never"
STOP_FOR = "30s"
STOP_ERRORS = "20%"
STOP_SYNTAX = "readyz[:DURATION], errors[:SHARE[:DURATION]], or never"


class StatefulSet(NamedTuple):
    """The owner of the pods that a fleet runs in."""

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read NAMESPACE/NAME. Raises ValueError."""
        namespace, slash, name = text.partition("/")
        if not (slash and namespace and name and "/" not in name):
            raise ValueError(f"{text!r} is not NAMESPACE/NAME")
        return cls(namespace, name)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/statefulsets/{self.name}"


DEFAULT_PROFILES = (ProfileChoice("default"),)
_WEIGHTED = re.compile(r"(.+?)=([^=/]*)")
_BOOTSTRAP_TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
_LABEL = r"(?:[a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    rf"\s*(?:!\s*{_LABEL}|{_LABEL}(?:\s*(?:==|!=|=)\s*{_VALUE}"
    rf"|\s+(?:in|notin)\s*\(\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*\))?)\s*"
)
"""Source: apimachinery/pkg/labels/selector.go, Parse."""
_COMPONENT_FLAG = re.compile(r"-*([a-zA-Z0-9][-a-zA-Z0-9.]*)(?:=(.*))?", re.DOTALL)


def _profiles(values: object) -> tuple[ProfileChoice, ...]:
    """Read `NAME|FILE[=WEIGHT]`s; the weights become the smallest whole numbers."""
    assert isinstance(values, tuple | list), values
    sources: list[str] = []
    weights: list[Fraction] = []
    for value in values:
        if isinstance(value, ProfileChoice):
            source, weight = value.source, Fraction(value.weight)
        else:
            found = _WEIGHTED.fullmatch(value)
            source, weight = (found[1], _weight(value, found[2])) if found else (value, Fraction(1))
        if not source or source in sources:
            raise ValueError(f"{value!r} names a profile twice" if source else "is empty")
        sources.append(source)
        weights.append(weight)
    if not sources:
        return DEFAULT_PROFILES
    scale = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * scale) for weight in weights]
    divisor = math.gcd(*whole)
    whole = [weight // divisor for weight in whole]
    if sum(whole) > PROFILE_PERIOD_MAX:
        raise ValueError(f"the weights need {sum(whole)} nodes; use coarser ones")
    return tuple(map(ProfileChoice, sources, whole))


def _weight(value: str, text: str) -> Fraction:
    """Read a weight such as 3 or 0.5."""
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) or not float(text):
        raise ValueError(f"{value!r}: the weight {text!r} is not a number above 0")
    return Fraction(text)


def _component_flags(values: object) -> tuple[str, ...]:
    """Read `node-eviction-rate=1`, with or without dashes, as `--node-eviction-rate=1`."""
    assert isinstance(values, tuple | list), values
    flags = []
    for value in values:
        found = _COMPONENT_FLAG.fullmatch(value)
        if found is None:
            raise ValueError(f"{value!r} is not a flag such as v=2")
        flags.append(f"--{found[1]}" if found[2] is None else f"--{found[1]}={found[2]}")
    return tuple(flags)


def _shard(value: object) -> object:
    """Read `hostname` as the number at its end: a StatefulSet's ordinal, a Job's index."""
    if value != "hostname":
        return value
    name = platform.node()
    found = re.search(r"-([0-9]+)$", name)
    if found is None:
        raise ValueError(f"the hostname {name!r} does not end with a number")
    return int(found[1])


def _share(value: object) -> float:
    """Read a share of the nodes: `25%` or `0.25`."""
    share = -1.0
    with contextlib.suppress(ValueError):
        share = parse_share(value)
    if not 0 < share <= 1:
        raise ValueError(
            f"{str(value)!r} is not a share above 0% and up to 100%, such as 25% or 0.25"
        )
    return share


MARGIN_MAX = 10.0


def margin(flag: str, text: str) -> float:
    """Read how much of a figure is as good as nothing: `10%` or `0.1`. UsageError names the flag.

    The margin of a comparison, and of a search. A bare 1 is refused too: it may mean 1 %.
    """
    try:
        share = parse_share(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from error
    if share > MARGIN_MAX:
        raise UsageError(f"{flag}: {text!r} is over {MARGIN_MAX:.0%}")
    if share == 1 and "%" not in text:
        raise UsageError(f"{flag}: {text!r} is not clear; write 1% or 100%")
    return share


def _stop_rules(value: object) -> StopRules:
    """Read `readyz:30s,errors:20%:30s`; each rule may stand once, and leave out what it ends with.

    `never` turns all of them off.
    """
    if isinstance(value, StopRules):
        return value
    text = str(value)
    found = StopRules()
    for rule in text.split(",") if text != NEVER else ():
        name, *given = rule.strip().split(":")
        if name == "readyz" and len(given) <= 1 and not found.readyz_ns:
            [for_] = given or [STOP_FOR]
            found = found._replace(readyz_ns=_stop_duration(text, for_))
        elif name == "errors" and len(given) <= 2 and not found.errors_ns:
            share, for_ = (*given, *(STOP_ERRORS, STOP_FOR)[len(given) :])
            found = found._replace(errors_share=_share(share), errors_ns=_stop_duration(text, for_))
        else:
            raise ValueError(f"{text!r} is not {STOP_SYNTAX}")
    return found


def _stop_duration(text: str, given: str) -> int:
    try:
        duration_ns = parse_positive_duration(given)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    if not duration_ns:
        raise ValueError(f"{text!r}: {given} is no time; never turns the rules off")
    return duration_ns


def _provider_id(value: object) -> str:
    """Read `none`, `fleet`, or a template that differs for each node."""
    text = str(value)
    if text in ("", PROVIDER_ID_NONE, PROVIDER_ID_FLEET):
        return text
    check_placeholders(text)
    if not {"name", "index"} & set(PLACEHOLDER.findall(text)):
        raise ValueError(
            f"{text!r} is neither none nor fleet, and has neither {{{{name}}}} nor {{{{index}}}}: "
            "all nodes would be one machine"
        )
    return text


def provider_template(option: str, of_profile: str) -> str:
    """Return the providerID of the nodes of a profile, with placeholders, "" for none."""
    known = {"": of_profile, PROVIDER_ID_NONE: "", PROVIDER_ID_FLEET: FLEET_PROVIDER_ID}
    return known.get(option, option)


def _rate(value: object) -> float:
    """Read how many nodes start each second: a number, or `max` for all of them at once."""
    text = str(value)
    rate = -1.0
    with contextlib.suppress(ValueError):
        rate = float(text)
    if text == RATE_MAX:
        return math.inf
    if not 0 < rate < math.inf:
        raise ValueError(f"{text!r} is neither a number of nodes a second above 0 nor {RATE_MAX}")
    return rate


def rate_text(rate: float) -> str:
    """Return a rate as it is read."""
    return RATE_MAX if rate == math.inf else f"{rate:g}"


def _bootstrap_token(value: SecretStr) -> SecretStr:
    if value and not _BOOTSTRAP_TOKEN.fullmatch(value.get_secret_value()):
        raise ValueError("it is not ID.SECRET, such as `kubeadm token create` prints")
    return value


def _address(value: str) -> str:
    host, _, port = value.rpartition(":")
    is_host = host and not re.search(r"[/\s]", host)  # a URL is none
    if value and not (is_host and port.isdigit() and 0 < int(port) <= 65535):
        raise ValueError(f"{value!r} is not HOST:PORT")
    return value


Address = Annotated[str, AfterValidator(_address)]


def _label_selector(text: str) -> str:
    """Check a label selector as kubectl takes it, so that a slip selects no other Nodes."""
    at = 0
    while found := _REQUIREMENT.match(text, at):
        at = found.end()
        if at == len(text):
            return text.strip()
        if text[at] != ",":
            break
        at += 1
    raise ValueError(f"{text!r} is no label selector such as KEY=VALUE,KEY2 in (A, B)")


LabelSelector = Annotated[str, AfterValidator(_label_selector)]
ProviderIdOption = Annotated[str, BeforeValidator(_provider_id)]
BootstrapToken = Annotated[SecretStr, AfterValidator(_bootstrap_token)]
ComponentFlags = Annotated[tuple[str, ...], BeforeValidator(_component_flags), Shown("NAME=VALUE")]
DurationOption = Annotated[int, BeforeValidator(parse_positive_duration)]
HostNames = Annotated[tuple[str, ...], AfterValidator(lambda given: tuple(map(host_name, given)))]
Profiles = Annotated[tuple[ProfileChoice, ...], BeforeValidator(_profiles)]
Rate = Annotated[float, BeforeValidator(_rate)]
RunId = Annotated[str, StringConstraints(pattern=RUN_ID_PATTERN)]
Shard = Annotated[Annotated[int, Field(ge=0, lt=SHARDS_MAX)] | None, BeforeValidator(_shard)]
StopIf = Annotated[StopRules, BeforeValidator(_stop_rules)]
DEFAULT_STOP_RULES = _stop_rules("readyz,errors")  # of a shared cluster
StatefulSetOption = Annotated[
    StatefulSet | None,
    BeforeValidator(lambda given: StatefulSet.parse(given) if isinstance(given, str) else given),
]
