"""The configuration of containers: variables, files of variables, users, host names."""

import pytest

from fleet.runtime.container_config import env_file_value


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("  \tKEY='a'\n", "KEY", "a"),
        ("# one\n\n  \nKEY='a' # two\n", "KEY", "a"),
        ("KEY='a'\nOTHER='b'\n", "OTHER", "b"),
        ("KEY='a'\nKEY='b'\n", "KEY", "a"),
        ("KEY='a#b=$C\\n  '\n", "KEY", "a#b=$C\\n  "),
        ("KEY='one\n\n two'\nOTHER='b'", "KEY", "one\n\n two"),
        ("KEY='one\r\ntwo'\r\n", "KEY", "one\ntwo"),
        ("KEY=''\n", "KEY", ""),
        ("KEY= 'a'\nOTHER='b'\n", "KEY", ""),
        ("KEY= 'a'\nOTHER='b'\n", "OTHER", "b"),
        ("KEY='a'\n", "NONE", ""),
        ("", "KEY", ""),
        ("KEY='a'\nrest", "KEY", "a"),
        ("rest\nKEY='a'", "KEY", None),
        ("KEY ='a'", "KEY", None),
        ("='a'", "KEY", None),
        ("KEY=a", "KEY", None),
        ('KEY="a"', "KEY", None),
        ("KEY=", "KEY", None),
        ("KEY='a''b'", "KEY", None),
        ("KEY='a\nOTHER='b'\n", "OTHER", None),
        ("KEY='a\n", "KEY", None),
    ],
)
def test_the_value_of_a_key(text: str, key: str, value: str | None) -> None:
    assert env_file_value(text, key) == value
