"""Histograms as Prometheus wants them."""

from fleet.metrics import Histogram
from fleet.report.prometheus import BOUNDS_S, prometheus_histogram


def test_buckets_are_cumulative_and_in_seconds() -> None:
    histogram = Histogram()
    for us in (900, 3_000, 3_000, 700_000, 45_000_000):
        histogram.record(us)
    buckets, total_s = prometheus_histogram(histogram)
    found = dict(buckets)
    assert [bound for bound, _ in buckets] == [*map(str, BOUNDS_S), "+Inf"]
    assert found["0.001"] == 1
    assert found["0.0025"] == 1
    assert found["0.005"] == 3
    assert found["0.5"] == 3
    assert found["1.0"] == 4
    assert found["30.0"] == 4
    assert found["+Inf"] == 5
    assert abs(total_s - 45.7069) < 1e-9


def test_no_sample_is_no_bucket() -> None:
    buckets, total_s = prometheus_histogram(Histogram())
    assert {count for _, count in buckets} == {0}
    assert total_s == 0
