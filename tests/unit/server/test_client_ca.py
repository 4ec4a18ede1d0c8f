"""Which client CA the kubelets' servers use: that which the cluster's ConfigMap names."""

import asyncio

import pytest
from world.cluster_fakes import FakeApi

from fleet.cluster.api_client import Answer
from fleet.errors import SetupError
from fleet.server.serving_tls import CONFIG_MAP, KEY, LOOK_S, ClientAuthorities


class Used:
    """Takes bundles, but for those that are broken."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.bundles: list[str] = []
        self.authorities = ClientAuthorities(self.api, self.use)

    def use(self, bundle: str) -> None:
        if bundle == "broken":
            raise ValueError("no start line")
        self.bundles.append(bundle)


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []

    async def nap(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", nap)
    return found


def test_the_bundle_is_used(caplog: pytest.LogCaptureFixture) -> None:
    used = Used()
    used.api.put(CONFIG_MAP, data={KEY: "PEM", "requestheader-client-ca-file": "other"})
    asyncio.run(used.authorities.read())
    assert used.bundles == ["PEM"]
    assert not caplog.records


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(403, {"message": "configmaps is forbidden"}), "configmaps is forbidden"),
        (Answer(200, {"data": {"requestheader-client-ca-file": "x"}}), f"it has no {KEY}"),
        (Answer(200, {"data": {KEY: " "}}), f"it has no {KEY}"),
        (Answer(200, {"data": {KEY: ["x"]}}), f"it has no {KEY}"),
        (Answer(200, {"data": {KEY: "broken"}}), "no start line"),
        (Answer(200, {}), f"it has no {KEY}"),
    ],
)
@pytest.mark.usefixtures("naps")
def test_without_one_only_tokens_are_taken_and_that_is_said_once(
    answer: Answer, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    used = Used()
    for _ in range(2):
        used.api.fail_next = [answer]
        asyncio.run(used.authorities.read())
    assert used.bundles == []
    assert said in caplog.text
    texts = [each.getMessage() for each in caplog.records]
    assert len(texts) == len(set(texts))
    assert sum("bearer tokens only" in each for each in texts) == 1


def test_a_server_that_has_just_started_is_asked_again(naps: list[float]) -> None:
    used = Used()

    def make(_method: str, _path: str) -> None:
        if len(used.api.log) == 4:
            used.api.put(CONFIG_MAP, data={KEY: "PEM"})

    used.api.before_request = make
    asyncio.run(used.authorities.read())
    assert used.bundles == ["PEM"]
    assert 1 < sum(naps) < 5


def test_another_bundle_is_taken_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is gone, broken, or cannot be asked for leaves the last one."""
    used = Used()
    steps: list[object] = ["A", "A", "broken", None, Answer(403, {}), SetupError("no answer"), "B"]

    class EndError(Exception):
        pass

    async def nap(seconds: float) -> None:
        if seconds != LOOK_S:
            return
        if not steps:
            raise EndError
        step = steps.pop(0)
        used.api.objects.pop(CONFIG_MAP, None)
        if isinstance(step, str):
            used.api.put(CONFIG_MAP, data={KEY: step})
        elif isinstance(step, Answer):
            used.api.fail_next = [step]
        elif isinstance(step, SetupError):
            error = step

            def fail(_method: str, _path: str) -> None:
                used.api.before_request = lambda _method, _path: None
                raise error

            used.api.before_request = fail

    monkeypatch.setattr(asyncio, "sleep", nap)
    with pytest.raises(EndError):
        asyncio.run(used.authorities.follow())
    assert used.bundles == ["A", "B"]
