from hypothesis import given
from hypothesis import strategies as st

from fleet.clock import NS_PER_S, TICK_NS, Draws, TimerWheel, mix

INSTANTS = st.integers(0, 40 * TICK_NS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), INSTANTS, st.integers(0, 3)),
        st.tuples(st.just("expire"), INSTANTS, st.integers(1, 5)),
    ),
    max_size=60,
)


def test_timers_of_some_nodes_are_forgotten_but_for_some_kinds() -> None:
    wheel = TimerWheel()
    for node in range(3):
        for timer in (1, 2):
            wheel.set(TICK_NS * (node + 1), node, timer)
    wheel.forget({0, 1}, kept={2})
    assert wheel.size == 4
    found = wheel.expire(NS_PER_S, 10)
    assert [(node, timer) for _, _, node, timer, _ in found] == [(0, 2), (1, 2), (2, 1), (2, 2)]
    wheel.set(0, 5, 1)
    wheel.forget({5}, kept={2})
    assert wheel.next_ns() is None
    assert wheel.expire(NS_PER_S, 10) == []


@given(STEPS)
def test_the_wheel_agrees_with_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    """A bucket that a limit cuts short is the earliest one: order holds, nothing is lost."""
    wheel = TimerWheel()
    model: list[tuple[int, int, int, int, str]] = []
    seq = now_ns = 0
    for action, instant, number in steps:
        if action == "set":
            seq += 1
            wheel.set(instant, number, 7, "key")
            model.append((instant, seq, number, 7, "key"))
        else:
            now_ns = max(now_ns, instant)
            due = sorted(each for each in model if each[0] <= now_ns)[:number]
            assert wheel.expire(now_ns, number) == due
            model = [each for each in model if each not in due]
        assert wheel.size == len(model)
        assert wheel.next_ns() == (min(model)[0] if model else None)


def test_draws_are_the_same_in_every_process() -> None:
    assert mix(1, 2, 3) == 0xA8F3134A766937DC
    assert Draws(7).bits(1, 2, 3) == Draws(7).bits(1, 2, 3)
    assert Draws(7).bits(1, 2, 3) != Draws(8).bits(1, 2, 3)
    assert Draws(7).bits(1, 2, 3) != Draws(7).bits(2, 1, 3)


def test_draws_are_spread_evenly() -> None:
    draws = Draws(3)
    found = [draws.uniform(node, 1, count) for node in range(100) for count in range(100)]
    assert all(0 <= each < 1 for each in found)
    tenths = [sum(at <= each * 10 < at + 1 for each in found) for at in range(10)]
    assert all(900 < each < 1100 for each in tenths)
