from world.node_world import LOST, NODE, OK, REFUSED, START_S, environment, turn
from world.sim_clock import SimClock

from fleet.clock import NS_PER_S
from fleet.k8s.effects import ApiCall, EventObject, Milestone, Op, Outbox, Report, SetTimer, Timer
from fleet.k8s.events import ObjectRef
from fleet.kubelet.events import QUEUE_MAX, TRIES_MAX, EventRecorder, Reason

ENV = environment()
NODE_REF = ObjectRef("Node", "", "n")
DROPPED = Report(NODE, Milestone.EVENT_DROPPED)


def record(
    recorder: EventRecorder,
    message: str = "m",
    now_ns: int = 0,
    reason: Reason = Reason.STARTING,
) -> Outbox:
    out: Outbox = []
    recorder.event(NODE_REF, reason, message, turn(ENV, now_ns, out))
    return out


def answer(recorder: EventRecorder, call: object, reply: object = OK, now_ns: int = 0) -> Outbox:
    out: Outbox = []
    recorder.on_reply(call, reply, turn(ENV, now_ns, out))  # type: ignore[arg-type]
    return out


def event(times: int, message: str = "m", last_s: int = START_S) -> EventObject:
    name = f"n.{SimClock.EPOCH_NS:x}"
    return EventObject(name, NODE_REF, False, "Starting", message, times, START_S, last_s)  # noqa: FBT003


def sent(out: Outbox) -> EventObject:
    [call] = out
    assert isinstance(call, ApiCall)
    assert isinstance(call.payload, EventObject)
    return call.payload


def test_a_repeated_event_is_counted() -> None:
    recorder = EventRecorder()
    [first] = record(recorder)
    assert first == ApiCall(NODE, Op.CREATE_EVENT, event(1).name, event(1))
    answer(recorder, first)
    [again] = record(recorder, now_ns=5 * NS_PER_S)
    assert again == ApiCall(NODE, Op.PATCH_EVENT, event(2).name, event(2, last_s=START_S + 5))


def test_one_request_is_in_flight_in_order() -> None:
    recorder = EventRecorder()
    [first] = record(recorder, "a")
    assert record(recorder, "b") == []
    assert record(recorder, "c") == []
    [second] = answer(recorder, first)
    assert sent([second]).message == "b"
    [third] = answer(recorder, second)
    assert sent([third]).message == "c"
    assert answer(recorder, third) == []


def test_two_events_of_one_instant_have_two_names() -> None:
    recorder = EventRecorder()
    [first] = record(recorder, "a")
    record(recorder, "b")
    assert sent([first]).name != sent(answer(recorder, first)).name


def test_the_tenth_different_message_is_combined() -> None:
    recorder = EventRecorder()
    messages = []
    for index in range(12):
        out = record(recorder, f"m{index}")
        messages.append(sent(out))
        answer(recorder, out[0])
    assert [each.message for each in messages[8:]] == [
        "m8",
        "(combined from similar events): m9",
        "(combined from similar events): m10",
        "(combined from similar events): m11",
    ]
    assert [each.times for each in messages[8:]] == [1, 1, 2, 3]
    for index in range(12, 40):
        answer(recorder, record(recorder, f"m{index}", (index - 11) * 300 * NS_PER_S)[0])
    # Any of the ten messages is forgotten, also one that was sent as it is. Source: PopAny.
    assert sent(record(recorder, "m0", 8_700 * NS_PER_S)).message.endswith("events): m0")


def test_normal_events_and_warnings_of_one_reason_are_not_combined() -> None:
    recorder = EventRecorder()
    for index in range(9):
        for reason in (Reason.BACK_OFF, Reason.BACK_OFF_PULL_IMAGE):
            out = record(recorder, f"{reason.name} {index}", reason=reason)
            assert sent(out).message == f"{reason.name} {index}"
            answer(recorder, out[0])


def test_a_group_ends_after_ten_silent_minutes() -> None:
    recorder = EventRecorder()
    for index in range(12):
        answer(recorder, record(recorder, f"m{index}")[0])
    out = record(recorder, "later", now_ns=601 * NS_PER_S)
    assert sent(out).message == "later"


def test_spam_is_dropped_after_a_burst_and_still_counted() -> None:
    recorder = EventRecorder()
    for _ in range(25):
        answer(recorder, record(recorder)[0])
    assert record(recorder) == [DROPPED]
    out = record(recorder, now_ns=300 * NS_PER_S)
    assert sent(out).times == 27


def test_a_full_bucket_gains_nothing() -> None:
    """Source: golang.org/x/time/rate, Limiter.advance: tokens above the burst are lost."""
    recorder = EventRecorder()
    for now_s in (0, *[450] * 25):
        answer(recorder, record(recorder, now_ns=now_s * NS_PER_S)[0])
    assert record(recorder, now_ns=600 * NS_PER_S) == [DROPPED]


def test_warnings_have_a_bucket_of_their_own() -> None:
    recorder = EventRecorder()
    for _ in range(25):
        answer(recorder, record(recorder)[0])
    assert len(record(recorder, reason=Reason.INVALID_DISK_CAPACITY)) == 1


def test_a_lost_event_is_tried_twelve_times_ten_seconds_apart() -> None:
    recorder = EventRecorder()
    [call] = record(recorder)
    now_ns = 0
    for tried in range(TRIES_MAX - 1):
        [timer] = answer(recorder, call, LOST, now_ns)
        assert isinstance(timer, SetTimer)
        assert timer.timer is Timer.EVENT_SEND
        waited_s = (timer.due_ns - now_ns) / NS_PER_S
        assert waited_s <= 10 if tried == 0 else waited_s == 10
        out: Outbox = []
        recorder.on_timer(turn(ENV, timer.due_ns - 1, out))
        assert out == []
        now_ns = timer.due_ns
        recorder.on_timer(turn(ENV, now_ns, out))
        assert out == [call]
    assert answer(recorder, call, LOST, now_ns) == [DROPPED]
    assert len(record(recorder, "next")) == 1


def test_a_refused_event_is_final() -> None:
    recorder = EventRecorder()
    assert answer(recorder, record(recorder)[0], REFUSED) == [DROPPED]


def test_the_queue_is_bounded() -> None:
    recorder = EventRecorder()
    names = [ObjectRef("Pod", "ns", f"p{index}") for index in range(QUEUE_MAX + 1)]
    out: Outbox = []
    for name in names:
        recorder.event(name, Reason.STARTING, "m", turn(ENV, 0, out))
    assert out[1:] == [DROPPED]


def test_what_is_forgotten_begins_anew_as_it_would_have() -> None:
    kept, forgot = EventRecorder(), EventRecorder()
    for recorder in (kept, forgot):
        for index in range(12):
            answer(recorder, record(recorder, f"m{index}")[0])
    for now_s in (700, 3000, 9000):
        forgot.forget(now_s * NS_PER_S)
        outs = [record(each, "again", now_s * NS_PER_S) for each in (kept, forgot)]
        assert outs[0] == outs[1]
        for recorder, out in zip((kept, forgot), outs, strict=True):
            answer(recorder, out[0])
    forgot.forget(90_000 * NS_PER_S)
    assert forgot._recent is None


def test_light_records_nothing() -> None:
    out: Outbox = []
    light = environment(light=True)
    EventRecorder.silent().event(NODE_REF, Reason.STARTING, "m", turn(light, 0, out))
    assert out == []
