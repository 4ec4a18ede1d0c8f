"""What a turn draws: one share of a node and an instant, and of what it is about."""

from world.node_world import environment, turn

STREAM = 7


def test_pods_of_one_instant_draw_for_themselves() -> None:
    """Else what fails at once is tried again at once, each time anew."""
    one = turn(environment(), 5)
    shares = {one.draw(STREAM, uid) for uid in ("a", "b", "c")} | {one.draw(STREAM)}
    assert len(shares) == 4
    assert one.draw(STREAM, "a") == turn(environment(), 5).draw(STREAM, "a")
    assert one.draw(STREAM, "a") != turn(environment(), 6).draw(STREAM, "a")
