"""What is kept of service-account tokens: their text for plug-ins, else nothing."""

import pytest

from fleet.k8s.pods import PodUid, Token, TokenSource
from fleet.kubelet.volumes.token_cache import LEFT_MAX, TokenCache
from fleet.runtime import programs

UID = PodUid("u-1")
SOURCE = TokenSource("", 3607, "token")


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_plug_ins", [lambda _pod, _spec: None])


@pytest.mark.usefixtures("plug_in")
def test_the_newest_token_of_an_audience_is_shown() -> None:
    cache = TokenCache()
    assert cache.text(UID, SOURCE) == ""
    cache.keep(UID, SOURCE, "first")
    cache.keep(UID, SOURCE, "second")
    cache.keep(UID, SOURCE._replace(audience="vault"), "other")
    assert cache.text(UID, SOURCE) == "second"
    assert cache.text(UID, SOURCE._replace(audience="vault")) == "other"
    assert cache.text(PodUid("u-2"), SOURCE) == ""


def test_without_a_plug_in_no_text_is_kept() -> None:
    cache = TokenCache()
    cache.keep(UID, SOURCE, "first")
    assert cache.text(UID, SOURCE) == ""
    cache.forget(UID, is_read=True)


def test_a_token_shows_itself_nowhere() -> None:
    assert "secret" not in f"{Token(7, 'secret')} {Token(7, 'secret')!r}"


@pytest.mark.usefixtures("plug_in")
def test_tokens_that_logs_are_computed_from_stay_for_the_last_pods() -> None:
    cache = TokenCache()
    uids = [PodUid(f"u-{at}") for at in range(LEFT_MAX + 2)]
    for uid in uids:
        cache.keep(uid, SOURCE, "token")
        cache.forget(uid, is_read=True)
        cache.forget(uid, is_read=True)  # a second time
    assert [cache.text(uid, SOURCE) for uid in uids] == ["", "", *["token"] * LEFT_MAX]
    cache.forget(uids[-1], is_read=False)
    assert cache.text(uids[-1], SOURCE) == ""
