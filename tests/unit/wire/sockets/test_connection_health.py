"""The variables that say how long a connection may be silent."""

import pytest

from fleet.clock import NS_PER_S
from fleet.errors import UsageError
from fleet.wire.sockets.connection import (
    IDLE_VARIABLE,
    PING_VARIABLE,
    ConnectionHealth,
    connection_health,
)


def test_without_variables_it_is_as_in_client_go() -> None:
    assert connection_health({}) == ConnectionHealth(30 * NS_PER_S, 15 * NS_PER_S)
    assert connection_health({IDLE_VARIABLE: "", PING_VARIABLE: ""}) == ConnectionHealth()


def test_both_can_be_set_and_zero_is_special() -> None:
    found = connection_health({IDLE_VARIABLE: "3", PING_VARIABLE: "2"})
    assert found == ConnectionHealth(3 * NS_PER_S, 2 * NS_PER_S)
    found = connection_health({IDLE_VARIABLE: "0", PING_VARIABLE: "0"})
    assert found == ConnectionHealth(0, 15 * NS_PER_S)


@pytest.mark.parametrize("text", ["soon", "-1", "1.5", "²", "86401"])
@pytest.mark.parametrize("name", [IDLE_VARIABLE, PING_VARIABLE])
def test_nonsense_is_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: '{text}' is not a number of seconds"):
        connection_health({name: text})
