import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.metrics import Histogram, Requests, merged

SAMPLES = st.lists(st.integers(0, 90_000_000), min_size=1, max_size=200)


def filled(samples: list[int]) -> Histogram:
    histogram = Histogram()
    for each in samples:
        histogram.record(each)
    return histogram


@given(SAMPLES, st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_percentiles_are_within_a_bucket(samples: list[int], fraction: float) -> None:
    rank = max(1, round(len(samples) * fraction))
    exact = sorted(samples)[rank - 1]
    width = max(100, exact // 10)  # two significant digits, 0.1 ms at least
    assert exact <= filled(samples).percentile_us(fraction) <= exact + width


@given(SAMPLES, SAMPLES)
def test_merging_is_recording_all(some: list[int], more: list[int]) -> None:
    both, total = filled(some + more), merged([filled(some), Histogram(), filled(more)])
    for name in Histogram.__slots__:
        assert getattr(both, name) == getattr(total, name)


@given(SAMPLES, SAMPLES)
def test_a_period_is_what_came_since(before: list[int], after: list[int]) -> None:
    histogram = filled(before)
    snapshot = histogram.snapshot()
    for each in after:
        histogram.record(each)
    period = histogram.since(snapshot)
    assert period.buckets == filled(after).buckets
    assert period.count == len(after)
    assert period.min_us <= min(after)
    assert period.max_us >= max(after) or period.max_us == histogram.max_us


@pytest.mark.parametrize(
    ("us", "bucket"),
    [
        (-5, 0),
        (0, 0),
        (99, 0),
        (9_999, 9_900),
        (10_000, 10_000),
        (99_999, 99_000),
        (100_000, 100_000),
        (999_999, 990_000),
        (1_000_000, 1_000_000),
        (1_234_567, 1_200_000),
    ],
)
def test_two_digits_are_kept(us: int, bucket: int) -> None:
    assert filled([us]).buckets == {bucket: 1}


def test_without_samples_all_is_zero() -> None:
    histogram = Histogram()
    assert histogram.percentile_us(0.99) == 0
    assert histogram.since({}).count == 0


def test_requests_are_counted_by_row_and_code() -> None:
    requests = Requests()
    requests.record(("GET", "pods"), 200, 5)
    requests.record(("GET", "pods"), 200, 7)
    requests.record(("GET", "pods"), 0, 9)
    assert requests.total == 3
    assert {c: h.count for c, h in requests.rows["GET", "pods"].items()} == {200: 2, 0: 1}
