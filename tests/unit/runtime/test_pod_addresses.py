"""The pod addresses of nodes with IPv6."""

from fleet.runtime.pod_addresses import SIZE_MAX, pool_of


def test_a_pod_has_an_address_of_each_range_and_ipv4_comes_first() -> None:
    for cidrs in ("10.1.2.0/24,fd00:1:2::/64", "fd00:1:2::/64,10.1.2.0/24"):
        pool = pool_of(cidrs)
        assert [pool.take(), pool.take()] == ["10.1.2.2,fd00:1:2::2", "10.1.2.3,fd00:1:2::3"]
        pool.free("10.1.2.2,fd00:1:2::2")
        assert pool.take() == "10.1.2.4,fd00:1:2::4"  # in rotation


def test_addresses_of_pods_that_run_are_not_given_out() -> None:
    pool = pool_of("10.1.2.0/24,fd00:1:2::/64")
    pool.claim("10.1.2.2,fd00:1:2::3")
    assert pool.take() == "10.1.2.3,fd00:1:2::2"
    pool.claim("192.0.2.1,2001:db8::1")
    assert pool.take() == "10.1.2.4,fd00:1:2::4"


def test_a_range_without_an_address_is_told_by_its_number() -> None:
    pool = pool_of("fd00:1:2::/64,10.1.2.0/29")
    for _ in range(5):
        assert pool.take()
    assert pool.take() == ""
    assert pool.shortage == ("range 1: no IP addresses available in range set: 10.1.2.1-10.1.2.6")
    pool.free("10.1.2.4")
    assert pool.take() == "10.1.2.4,fd00:1:2::8"  # what was not used went back; in rotation


def test_the_last_address_of_ipv6_is_one_as_any() -> None:
    pool = pool_of("fd00::8/126")
    assert [pool.take(), pool.take(), pool.take()] == ["fd00::a", "fd00::b", ""]
    assert pool.shortage.endswith("set: fd00::9-fd00::b")


def test_a_large_range_is_not_kept_whole() -> None:
    pool = pool_of("fd00::/64")
    pool.claim("fd00::ffff:ffff:ffff")
    taken = [pool.take() for _ in range(SIZE_MAX)]
    assert taken[0] == "fd00::2"
    assert taken[-1] == ""
    pool.free("fd00::7")
    assert pool.take() == "fd00::7"
