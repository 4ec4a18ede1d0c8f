"""Security contexts: what a container's status shows of them, and what is refused."""

import pytest

from fleet.k8s.pod_template import container_user
from fleet.k8s.pods import IMAGE_USER, UserSpec
from fleet.runtime.container_config import non_root_error, user_json, windows_non_root_error

POD = "web_default(123)"


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        (IMAGE_USER, (0, [0], 0)),
        (UserSpec(1000), (0, [0], 1000)),
        (UserSpec(1000, 3000, (2000, 4000, 3000)), (3000, [3000, 2000, 4000], 1000)),
        (UserSpec(non_root=True), (65532, [65532], 65532)),
    ],
)
def test_the_status_shows_the_user(user: UserSpec, shown: tuple[int, list[int], int]) -> None:
    gid, groups, uid = shown
    listed = ",".join(map(str, groups))
    text = f'{{"linux":{{"gid":{gid},"supplementalGroups":[{listed}],"uid":{uid}}}}}'
    assert user_json(user).decode() == text


def test_a_containers_own_context_goes_before_its_pods() -> None:
    pod = {"runAsUser": 1, "runAsGroup": 2, "fsGroup": 5, "supplementalGroups": [6]}
    own = {"securityContext": {"runAsUser": 0, "runAsNonRoot": True}}
    assert container_user(own, pod) == UserSpec(0, 2, (5, 6), non_root=True, fs_group=5)
    assert container_user({}, {}) is IMAGE_USER
    assert container_user({"securityContext": {"privileged": True}}, {}) == IMAGE_USER


@pytest.mark.parametrize(
    ("user", "text"),
    [
        (UserSpec(0), ""),
        (UserSpec(1000, non_root=True), ""),
        (UserSpec(non_root=True), ""),
        (UserSpec(0, non_root=True), "container's runAsUser breaks non-root policy"),
    ],
)
def test_root_is_refused_where_it_must_not_be(user: UserSpec, text: str) -> None:
    where = ' (pod: "web_default(123)", container: c)'
    assert non_root_error(user, "c", POD) == (text + where if text else "")


@pytest.mark.parametrize(
    ("container", "pod", "is_refused"),
    [
        ("ContainerUser", "ContainerAdministrator", False),
        ("containeradministrator", "", True),
        ("", "ContainerAdministrator", True),
        ("", "", False),
    ],
)
def test_on_windows_root_has_a_name(container: str, pod: str, is_refused: bool) -> None:  # noqa: FBT001
    def context(name: str) -> dict[str, object]:
        return {"windowsOptions": {"runAsUserName": name}} if name else {}

    spec = {"securityContext": {"runAsNonRoot": True, "runAsUser": 0, **context(container)}}
    user = container_user(spec, context(pod))
    assert bool(windows_non_root_error(user, "c", POD)) is is_refused
    assert not windows_non_root_error(user._replace(non_root=False), "c", POD)
