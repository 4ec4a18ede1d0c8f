"""`fleet clean`: what is asked, what is refused, and how it ends."""

import asyncio

import pytest
from world.cluster_fakes import FakeApi, add_owned
from world.left_cluster import REAL, add_pod, belongs, cluster

from fleet.cluster.identity import ACCESS_REVIEW
from fleet.cluster.ownership import NODES, OWNER_ANNOTATION, RUN_LABEL
from fleet.cluster.runs import RUN_LEASES, list_runs
from fleet.errors import Exit, UsageError
from fleet.run.clean_command import Choice, clean, runs_text

ALL, EXPIRED = Choice(all_runs=True), Choice(expired=True)


def play(api: FakeApi, choice: Choice, answer: bool | None = None) -> tuple[Exit, str, str]:  # noqa: FBT001
    """Return how it ended, what it printed, and what it noted beside it or asked."""
    said: list[str] = []
    noted: list[str] = []

    async def ask(question: str) -> bool:
        noted.append(question)
        return bool(answer)

    work = clean(
        api, choice, ask=None if answer is None else ask, say=said.append, note=noted.append
    )
    code = asyncio.run(work)
    return code, "".join(said), "\n".join(noted)


def test_a_run_that_may_be_gone_is_no_error() -> None:
    code, said, _ = play(cluster(), Choice(run="never", is_gone_fine=True))
    assert code is Exit.OK
    assert said.startswith("removed 0 runs")


@pytest.mark.parametrize("choice", [Choice(), ALL._replace(is_dry=True)])
def test_without_a_choice_or_in_a_dry_run_nothing_is_deleted(choice: Choice) -> None:
    api = cluster()
    before = set(api.objects)
    code, said, _ = play(api, choice)
    assert code is Exit.OK
    assert "nothing was deleted" in said
    assert set(api.objects) == before
    assert {path for method, path in api.log if method != "GET"} <= {ACCESS_REVIEW}


def test_where_nothing_is_left_nothing_is_offered() -> None:
    code, said, _ = play(FakeApi(), Choice())
    assert (code, said.strip()) == (Exit.OK, "no fleet has left anything in this cluster")


def test_a_dry_run_shows_what_would_go_and_no_more() -> None:
    _, said, _ = play(cluster(), EXPIRED._replace(is_dry=True))
    assert "left" in said
    assert "running" not in said


@pytest.mark.parametrize("choice", [ALL, EXPIRED])
def test_many_runs_are_shown_and_asked_about(choice: Choice) -> None:
    api = cluster()
    before = set(api.objects)
    with pytest.raises(UsageError, match="not confirmed; nothing was deleted"):
        play(api, choice, answer=False)
    assert set(api.objects) == before
    code, _, asked = play(api, choice, answer=True)
    assert code is Exit.OK
    assert "left behind" in asked
    assert not belongs(api, "a-")


@pytest.mark.parametrize(("choice", "flag"), [(ALL, "--all"), (EXPIRED, "--expired")])
def test_without_a_terminal_many_runs_need_a_yes(choice: Choice, flag: str) -> None:
    api = cluster()
    with pytest.raises(UsageError, match=f"^{flag} without a terminal needs --yes"):
        play(api, choice)
    assert not api.log
    play(api, choice._replace(yes=True))
    assert not belongs(api, "a-")


def test_expired_spares_what_a_running_fleet_holds() -> None:
    api = cluster()
    assert "removed 1 runs" in play(api, EXPIRED._replace(yes=True))[1]
    assert not belongs(api, "a-")
    assert f"{NODES}/b-0" in api.objects


def test_expired_spares_a_run_that_lives_again_while_it_was_asked_about() -> None:
    api = cluster()

    async def revive(question: str) -> bool:
        lease = api.objects[f"{RUN_LEASES}/fleet-run-a"]["metadata"]
        lease["managedFields"] = [{"time": "2027-01-15T08:00:40Z"}]
        return "left" in question

    asyncio.run(clean(api, EXPIRED, ask=revive))
    assert f"{NODES}/a-0" in api.objects


def test_all_takes_running_fleets_too_but_no_real_node() -> None:
    api = cluster()
    assert "removed 2 runs" in play(api, ALL._replace(yes=True))[1]
    assert not belongs(api, "b-0")
    assert set(REAL) <= set(api.objects)


@pytest.mark.parametrize(
    ("marks", "choice"),
    [
        ({"labels": {RUN_LABEL: "left"}}, Choice(run="left")),
        ({"labels": {RUN_LABEL: "gone"}}, Choice(run="gone")),
        ({"labels": {RUN_LABEL: "gone"}}, ALL._replace(yes=True)),
        ({"labels": {RUN_LABEL: "gone"}}, EXPIRED._replace(yes=True)),
        ({"labels": {RUN_LABEL: ""}}, ALL._replace(yes=True)),
        ({"labels": {RUN_LABEL: ""}}, EXPIRED._replace(yes=True)),
        (
            {"labels": {RUN_LABEL: "left"}, "annotations": {OWNER_ANNOTATION: "other/lease"}},
            Choice(run="left"),
        ),
    ],
)
def test_a_node_with_one_mark_is_refused_by_name(
    marks: dict[str, dict[str, str]], choice: Choice
) -> None:
    api = cluster()
    add_owned(api, "labelled-0", marks)
    add_pod(api, "on-labelled-0", "labelled-0")
    theirs = belongs(api, "labelled-0")
    code, _, noted = play(api, choice)
    assert code is Exit.INVALID
    assert "not touched" in noted
    assert "labelled-0" in noted
    assert len(theirs) == 4
    assert set(theirs) <= set(api.objects)


def test_a_lease_with_the_label_alone_is_refused_by_name() -> None:
    api = cluster()
    api.put(f"{RUN_LEASES}/theirs", metadata={"labels": {RUN_LABEL: ""}}, spec={})
    code, _, noted = play(api, ALL._replace(yes=True))
    assert code is Exit.INVALID
    assert "Leases theirs in namespace default" in noted
    assert f"{RUN_LEASES}/theirs" in api.objects


def test_an_unknown_run_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no such run in this cluster; there are: left, running"):
        play(cluster(), Choice(run="nope"))


def test_choices_exclude_one_another() -> None:
    with pytest.raises(UsageError, match="exclude one another"):
        play(cluster(), Choice(run="left", all_runs=True))


def test_the_list_says_what_runs() -> None:
    lines = runs_text(asyncio.run(list_runs(cluster())).runs).splitlines()
    assert lines[0].split() == ["RUN", "PREFIX", "NODES", "OBJECTS", "STATE", "AGE", "VERSION"]
    states = {line.split()[0]: line for line in lines[1:3]}
    assert "left behind" in states["left"]
    assert "running  " in states["running"]
    assert runs_text([]) == "no fleet has left anything in this cluster\n"
