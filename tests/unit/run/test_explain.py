"""What `fleet profiles explain` says of pods."""

import sys
from pathlib import Path

import pytest
from support import markdown
from world.everyday_pods import objects_of

from fleet.cli import main
from fleet.errors import Exit, UsageError
from fleet.profile.option_types import ProfileChoice
from fleet.run.explain import explain_files, text_of

PODS = """
apiVersion: v1
kind: Pod
metadata:
  name: shop
  annotations: {fleet.emulator/readiness-probe.web: "Success after 5s, Failure after 1m"}
spec:
  initContainers:
  - {name: wait, image: registry.example.net/wait-for:2, args: ["db:5432"]}
  - {name: mesh, image: registry.example.net/mesh:1, restartPolicy: Always}
  containers:
  - name: web
    image: registry.example.net/shop:7
    readinessProbe: {httpGet: {port: 9999}}
    startupProbe: {exec: {command: [shop, ready]}}
    lifecycle: {preStop: {exec: {command: [sh, -c, "shop drain; sleep 10"]}}}
  - name: live
    image: busybox
    command: [sh, -c, "touch /tmp/up; sleep 30; rm /tmp/up; sleep 600"]
    livenessProbe: {exec: {command: [cat, /tmp/up]}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly}
spec:
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: OnFailure
          containers: [{name: c, image: x, command: [sh, -c, "sleep 3\\nexec backup"]}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: left-out}
"""
SHOP = """
Pod shop
  init container wait
    program     the entry point of registry.example.net/wait-for:2 with db:5432
    taken as    by role: init container
    ends        with 0 after 1s
  sidecar mesh
    program     the entry point of registry.example.net/mesh:1
    taken as    by role: server
    ends        never: it runs until it is stopped
  container web
    program     the entry point of registry.example.net/shop:7
    taken as    by role: server
    ends        never: it runs until it is stopped
    startup     exec shop ready: passes
    readiness   httpGet port 9999: fails (Refused); passes from 5s on; fails (Failure) from 1m0s on
  container live
    program     sh -c 'touch /tmp/up; sleep 30; rm /tmp/up; sleep 600'
    taken as    understood: fleet follows its command
    ends        with 0 after 10m30s
    liveness    exec cat /tmp/up: passes; fails (Failure) from 30s on

CronJob nightly
  container c
    program     sh -c 'sleep 3\\nexec backup'
    taken as    understood up to 3s, then by role: batch
    ends        with 0 after 3s and 5s
"""


def explained(text: str, *choices: Path) -> str:
    """Return what people read."""
    return text_of(explain_files({"x": text}, tuple(ProfileChoice(str(each)) for each in choices)))


def test_programs_read_the_same_facts() -> None:
    shop, nightly = explain_files({"x": PODS}, ())
    assert [each["name"] for each in shop["containers"]] == ["wait", "mesh", "web", "live"]
    assert nightly["object"] == "CronJob nightly"
    [container] = nightly["containers"]
    assert [*container] == ["kind", "name", "program", "taken_as", "ends"]


def test_what_is_declared_is_said_to_be(tmp_path: Path) -> None:
    behavior = tmp_path / "behavior.yaml"
    behavior.write_text("""
apiVersion: fleet.emulator/v1alpha1
kind: PodBehavior
metadata: {name: slow-batch}
spec:
  containers:
  - {type: InitContainer, outcomes: [{after: 20s, exitCode: 3}]}
  - outcomes: [{weight: 9, after: 10m}, {weight: 1, after: 4m, exitCode: 1}]
""")
    job = next(objects_of("batch-commands"))
    text = f"{{kind: List, items: [{job}]}}"
    found = explained(text, behavior).splitlines()
    assert found[0] == "Job computes"
    assert found[3:] == [
        "    taken as    declared: by PodBehavior slow-batch",
        "    ends        one of: with 0 after 10m0s; with 1 after 4m0s",
    ]
    annotated = PODS.replace("{fleet", "{fleet.emulator/run-time.wait: 9s, fleet", 1)
    found = explained(annotated).splitlines()
    assert found[3:5] == [
        "    taken as    declared: by annotations of the pod",
        "    ends        with 0 after 9s",
    ]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{distribution: LogNormal, median: 2s, p99: 20s}", "LogNormal, median 2s, p99 20s"),
        ("{distribution: Uniform, min: 1s, max: 3s}", "Uniform, min 1s, max 3s"),
        ("{distribution: Normal, mean: 3s, stddev: 1s, min: 1s}", "Normal, mean 3s, stddev 1s, "),
        ("{distribution: Exponential, mean: 2s, max: 1m}", "Exponential, mean 2s, max 1m0s"),
        ("90s", "1m30s"),
    ],
)
def test_a_distribution_is_said_in_words(tmp_path: Path, given: str, words: str) -> None:
    profile = tmp_path / "mine.yaml"
    profile.write_text(f"""
apiVersion: fleet.emulator/v1alpha1
kind: NodeProfile
metadata: {{name: mine}}
spec: {{defaults: {{initContainerRunTime: {given}}}}}
""")
    found = explained(PODS, profile).splitlines()
    assert found[4].startswith(f"    ends        with 0 after {words}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "x:1:5: is not YAML"),
        ("[1]", "x: a document is a mapping, not list"),
        ("a: 1", "x: a document is not a Kubernetes object: it has no kind"),
        ("kind: ConfigMap", "x: holds no Pod and no object with a pod template"),
        ("{kind: Pod, metadata: {name: p}}", "x: Pod p: its pod spec cannot be read"),
        ("{kind: Pod, spec: {containers: [3]}}", "x: Pod unnamed: its pod spec cannot be read"),
        ("{kind: Pod, spec: {containers: [{}]}}", "x: Pod unnamed: its pod spec lacks 'name'"),
        ("{kind: Pod, spec: {}}", "x: Pod unnamed: its pod spec has no containers"),
    ],
)
def test_what_is_no_pod_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        explain_files({"x": text}, ())
    assert str(refused.value).startswith(words)


def test_a_file_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(PODS)
    monkeypatch.setattr(sys, "argv", ["fleet", "profiles", "explain", "-f", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == Exit.OK
    assert capsys.readouterr().out == SHOP.lstrip()


def test_a_container_that_cannot_start_says_why() -> None:
    script = f"echo {'a' * 200_000}"
    container = f"{{name: c, image: x, command: [sh, -c, '{script}']}}"
    pod = f"{{kind: Pod, spec: {{containers: [{container}]}}}}"
    [_, _, line] = explained(pod).splitlines()
    assert line.startswith("    start       fails: ")
    assert line.endswith("argument list too long")


def test_the_page_shows_what_is_printed(tmp_path: Path) -> None:
    page = list(markdown.blocks(markdown.ROOT / "docs" / "how-to" / "workloads.md"))
    [pod] = [each.text for each in page if each.options.get("file") == "pod.yaml"]
    [shown] = [each.text for each in page if each.language == "console"]
    command, _, printed = shown.partition("\n")
    assert command == "$ fleet profiles explain -f pod.yaml"
    assert explained(pod) == printed.rstrip("\n")
    documents = [each.text for each in page if "apiVersion: fleet.emulator" in each.text]
    (tmp_path / "all.yaml").write_text("---\n".join(documents))
    found = explained(pod, tmp_path / "all.yaml").splitlines()
    assert "    ends        with 0 after LogNormal, median 2s, p99 20s" in found
