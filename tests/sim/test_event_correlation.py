"""What the correlator makes of hours of trouble: groups, counts, and the spam filter."""

from world.simulation import Simulation
from world.strategic_merge import Object

pytest_plugins = ("sim_encodings",)

HOUR_S = 3600
BURST, REFILL_S = 25, 300


def events_about(sim: Simulation, name: str) -> dict[str, Object]:
    """Return the events about an object, by their own names."""
    return {str(each["metadata"]["name"]): each for each in sim.events(about=name)}


def sent(sim: Simulation, events: dict[str, Object], kind: str) -> tuple[int, int]:
    """Count the POSTs and PATCHes of one type of event."""
    names = {name for name, each in events.items() if each["type"] == kind}
    posts = len(names)
    patches = [
        each
        for each in sim.calls(verb="PATCH", path="/events/")
        if each.path.rpartition("/")[2] in names
    ]
    return posts, len(patches)


def test_an_hour_of_a_crash_loop_is_counted_then_thinned_out() -> None:
    sim = Simulation(seed=11).run_for(seconds=30)
    sim.create_pod("crash", command=["false"])
    sim.run_for(seconds=HOUR_S)
    events = events_about(sim, "crash")
    by_reason = {str(each["reason"]): each for each in events.values()}
    assert set(by_reason) == {"Pulling", "Pulled", "Created", "Started", "BackOff"}
    assert len(events) == 6  # Pulled says two things; what repeats is counted, not made anew
    [container] = sim.status("crash")["containerStatuses"]
    starts = container["restartCount"] + 1
    assert 14 <= starts <= 18
    for kind in ("Normal", "Warning"):
        posts, patches = sent(sim, events, kind)
        assert BURST < posts + patches <= BURST + HOUR_S // REFILL_S + 1
    # A dropped event still counts, so the next one that is sent shows the whole number.
    posts, patches = sent(sim, events, "Warning")
    assert by_reason["BackOff"]["count"] > posts + patches
    assert by_reason["Started"]["count"] <= starts
    assert sim.reactor.counts.events_dropped > 0
    assert by_reason["BackOff"]["message"].startswith(
        "Back-off restarting failed container c in pod crash_default("
    )


def test_after_a_quiet_night_the_burst_is_there_again() -> None:
    """25 tokens take 25 x 300 s to come back."""
    sim = Simulation(seed=12).run_for(seconds=30)
    sim.create_pod("crash", command=["false"])
    sim.run_for(seconds=HOUR_S)
    dropped = sim.reactor.counts.events_dropped
    assert dropped
    sim.server.delete_pod("crash")
    sim.run_for(seconds=BURST * REFILL_S)
    sim.create_pod("crash", command=["false"])  # another uid is another object anyway
    before = len(sim.calls(verb="POST", path="/events"))
    sim.run_for(seconds=60)
    assert len(sim.calls(verb="POST", path="/events")) - before == 4
    assert sim.reactor.counts.events_dropped == dropped


def test_an_event_that_somebody_deleted_is_posted_anew() -> None:
    sim = Simulation(seed=13).run_for(seconds=30)
    sim.create_pod("crash", command=["false"])
    sim.run_for(seconds=120)
    [name] = [
        name for name, each in events_about(sim, "crash").items() if each["reason"] == "Started"
    ]
    sim.server.remove(("events", "default", name))
    sim.run_for(seconds=120)
    again = events_about(sim, "crash")[name]
    assert again["count"] >= 4
    codes = [each.code for each in sim.calls(verb="PATCH", path=f"/events/{name}")]
    assert 404 in codes


def test_a_full_range_of_addresses_is_combined_from_the_tenth_message_on() -> None:
    """Each failed sandbox has an id of its own in its message."""
    sim = Simulation(seed=14).run_for(seconds=30)
    sim.server.update(
        "nodes", "n-0", {"spec": {"podCIDR": "10.9.0.0/30", "podCIDRs": ["10.9.0.0/30"]}}
    )
    sim.run_for(seconds=5)
    for index in range(2):
        sim.create_pod(f"pod-{index}")
    sim.run_for(seconds=300)
    phases = sorted(sim.phase(f"pod-{index}") for index in range(2))
    assert phases == ["Pending", "Running"]
    starved = next(name for name in ("pod-0", "pod-1") if sim.phase(name) == "Pending")
    found = [
        each
        for each in events_about(sim, starved).values()
        if each["reason"] == "FailedCreatePodSandBox"
    ]
    combined = [
        each for each in found if each["message"].startswith("(combined from similar events): ")
    ]
    assert len(found) == 10
    assert len(combined) == 1
    assert combined[0]["count"] > 3
    assert 'failed to setup network for sandbox "' in combined[0]["message"]
    assert "no IP addresses available in range set: 10.9.0.1-10.9.0.2" in combined[0]["message"]
