"""What a run is held to: SIG Scalability's objectives by default, `--slo FILE` changes them.

    apiVersion: fleet.emulator/v1alpha1
    kind: ServiceLevelObjectives
    metadata: {name: strict}
    spec:
      defaults: true
      expectations:
      - {sli: MutatingApiCallLatency, percentile: 99, max: 200ms}
      - {sli: FalseNotReadyNodes, max: 0}

An entry takes the place of the default of the same SLI. What a file names is judged however short
the run was, as soon as there is one sample. What fleet expects by itself is judged only after a
minute with all nodes Ready, and with at least 100 samples: a look at 100 nodes on a slow laptop
does not fail.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fleet.errors import UsageError
from fleet.profile.schema import API_VERSION, Metadata, Spec, explain
from fleet.profile.yaml_text import YAMLTextError, read_document
from fleet.quantity import parse_duration

KIND = "ServiceLevelObjectives"
FILE_BYTES_MAX = 1 << 20

SIG = "SIG Scalability"
OWN = "fleet"

STEADY = "steady"
WHOLE = "run"


PODS_PER_S_MAX = 20
"""What SIG Scalability's SLO of pod starts is about; a burst is another experiment.

Source: kubernetes/community sig-scalability/configs-and-limits/thresholds.md, pod churn.
"""


class Indicator(NamedTuple):
    """What can be expected of a run."""

    words: str
    phase: str = WHOLE
    """Which part of the run it is taken from, unless a file says another."""
    unit: Literal["s", "nodes"] = "s"
    has_percentile: bool = True


INDICATORS = {
    "MutatingApiCallLatency": Indicator(
        "writes of single objects, the slowest kind of request", STEADY
    ),
    "SingleObjectReadLatency": Indicator(
        "reads of single objects, the slowest kind of request", STEADY
    ),
    "ListLatency": Indicator(
        "lists of a namespace or the cluster, the slowest kind of request", STEADY
    ),
    "PodStartupLatency": Indicator(
        "from the scheduler's queue to Running at the API server, without simulated time"
    ),
    "LeaseLateness": Indicator("how long after its due time a renewal was sent"),
    "WatchDelay": Indicator(
        "from a write of a status to its event on the node's watch: at most what the event took"
    ),
    "TimeToNodesReady": Indicator(
        "from the first kubelet's start until all were Ready", has_percentile=False
    ),
    "FalseNotReadyNodes": Indicator(
        "nodes that were Ready and then not", unit="nodes", has_percentile=False
    ),
}
"""By name, in the order of the report."""

MIN_SAMPLES = 100
"""A 99th percentile of fewer is their maximum."""
STEADY_LEAST_S = 60.0
"""fleet judges no shorter steady part unless a file asks for it."""


class Objective(NamedTuple):
    """One bound that a run is held to."""

    sli: str
    percentile: float
    limit: float
    """Seconds, or a count."""
    source: str
    is_judged: bool = True
    """Whether it decides the verdict, or is only shown."""
    min_samples: int = MIN_SAMPLES
    phase: str = STEADY


def is_asked(source: str) -> bool:
    """Return whether the user set a limit, by --slo or in a scenario, and not fleet."""
    return source not in {SIG, OWN}


DEFAULTS = (
    Objective("MutatingApiCallLatency", 99, 1.0, SIG),
    Objective("SingleObjectReadLatency", 99, 1.0, SIG),
    Objective("ListLatency", 99, 30.0, SIG),
    Objective("PodStartupLatency", 99, 5.0, SIG, phase=WHOLE),
    # Whoever stops fleet or the control plane on purpose loses nodes: shown, no verdict.
    Objective("FalseNotReadyNodes", 100, 0.0, OWN, is_judged=False, min_samples=0, phase=WHOLE),
)
"""Source: kubernetes/community sig-scalability/slos/slos.md; fleet's own has no upstream."""


def _limit(value: object) -> float:
    """Read a duration or a count. Raises ValueError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"{value!r} is negative")
        return float(value)
    return parse_duration(value) / 1e9


class ExpectationSpec(Spec):
    """One entry of a file."""

    sli: str
    percentile: Annotated[float, Field(gt=0, le=100)] | None = None
    max: Annotated[float, BeforeValidator(_limit, json_schema_input_type=float | str)]
    phase: Literal["steady", "run"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _has_unit(cls, value: object) -> object:
        if isinstance(value, dict) and (known := INDICATORS.get(str(value.get("sli")))):
            is_number = isinstance(value.get("max"), int | float)
            if known.unit == "s" and is_number:
                raise ValueError(f"max: {value['max']!r} has no unit; write it as 500ms or 1s")
            if known.unit != "s" and "max" in value and not is_number:
                raise ValueError(f"max: {value['max']!r} is not a number of {known.unit}")
        return value

    @model_validator(mode="after")
    def _is_known(self) -> "ExpectationSpec":
        known = INDICATORS.get(self.sli)
        if known is None:
            raise ValueError(f"sli: {self.sli!r} is not one of {', '.join(INDICATORS)}")
        if self.percentile is not None and not known.has_percentile:
            raise ValueError(f"percentile: {self.sli} is a single figure, it has none")
        if self.phase == STEADY and known.phase == WHOLE:
            raise ValueError(f"phase: {self.sli} is taken from the whole run")
        return self


class ObjectivesSpec(Spec):
    """What the file holds beside its name."""

    defaults: bool = True
    expectations: tuple[ExpectationSpec, ...] = ()


class ObjectivesManifest(Spec):
    """The document."""

    api_version: Literal["fleet.emulator/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["ServiceLevelObjectives"]
    metadata: Metadata
    spec: ObjectivesSpec


def load_objectives(path: Path | None) -> tuple[Objective, ...]:
    """Return what a run is held to. Raises UsageError that names file, path and what is allowed."""
    if path is None:
        return DEFAULTS
    try:
        text = path.read_text("utf-8")
        if len(text) > FILE_BYTES_MAX:
            raise UsageError(f"--slo {path}: is over {FILE_BYTES_MAX >> 20} MiB")
        content = read_document(text)
    except OSError as error:
        raise UsageError(f"--slo {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--slo {path}: is not UTF-8 text") from error
    except YAMLTextError as error:
        raise UsageError(f"--slo {path}{error.where}: is not YAML: {error.problem}") from error
    if not isinstance(content, dict):
        raise UsageError(f"--slo {path}: no {KIND} (apiVersion: {API_VERSION}) is in it")
    try:
        spec = ObjectivesManifest.model_validate(content).spec
    except ValidationError as error:
        raise UsageError(f"--slo {path}: {explain(error, ObjectivesManifest)}") from error
    return objectives_of(spec.expectations, str(path), with_defaults=spec.defaults)


def objectives_of(
    given: Iterable[ExpectationSpec], source: str, *, with_defaults: bool
) -> tuple[Objective, ...]:
    """Return the objectives of a file, on top of the defaults."""
    found = {each.sli: each for each in DEFAULTS} if with_defaults else {}
    for each in given:
        known = INDICATORS[each.sli]
        found[each.sli] = Objective(
            each.sli,
            each.percentile or (99 if known.has_percentile else 100),
            each.max,
            source,
            min_samples=1 if known.has_percentile else 0,
            phase=each.phase or known.phase,
        )
    return tuple(found.values())
