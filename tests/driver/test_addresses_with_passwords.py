"""A malformed address never shows its password: the error, its causes and the log."""

from urllib.parse import quote

import pytest

from penstock import ConfigurationError, Penstock
from penstock.driver.address import parse_address

SECRETS = ("s3cr", "etP", "hunter2")


@pytest.mark.parametrize(
    "address",
    [
        "valkey://:s3cr/etP@h/0",
        "valkey://:s3cr#etP@h/0",
        "valkey://:s3cr?etP@h/0",
        "valkey://:123/etP@h/0",
        "valkey://:123#etP@h/0",
        "valkey://:123?etP@h/0",
        "valkey://:123?etP=1@h/0",
        "valkey://ada:s3cr/etP@h:6379/0",
        "valkeys://ada:s3cr#etP@h:6379/0",
        "redis://:s3cr?etP@h:6379/0?client_name=x",
        "valkey+cluster://:s3cr/etP@h:7000,h:7001",
        "valkey+sentinel://:s3cr#etP@h:26379/service/0",
        "unix://:s3cr/etP@/run/valkey.sock?db=hunter2",
        "hunter2:x@h:6379",
        "ada:s3cretP@h:6379",
        "valkey://h/0?password=s3cr@etP&db=hunter2",
        "valkey://h/0?password=s3cr#etP",
        "valkey://:s3cretP@[::1/0",
        "valkey://:s3cretP@h:port/0",
        "valkey://:s3cretP@h:99999/0",
        "valkey://:s3cretP@h/x",
        "valkey://:s3cretP@h/0/1",
        "valkey://:s3cretP@h/0?nonsense=1",
        "valkey+sentinel://:s3cretP@h",
        "valkey://:s3cretP@h,h2/0",
    ],
)
def test_an_error_shows_no_password(address: str):
    with pytest.raises(ConfigurationError) as raised:
        Penstock(address)
    error: BaseException | None = raised.value
    while error is not None:
        assert not any(secret in f"{error!s} {error!r}" for secret in SECRETS)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize("character", "/?#@:% ")
def test_any_character_may_stand_in_a_password_if_it_is_quoted(character: str):

    found = parse_address(f"valkey://ada:{quote('s3cr' + character + 'etP', safe='')}@h:6379/1")
    assert (found.options["password"], found.nodes, found.options["db"]) == (f"s3cr{character}etP", (("h", 6379),), 1)


def test_the_error_says_which_characters_to_write_otherwise():
    with pytest.raises(ConfigurationError, match="'/' as %2F"):
        Penstock("valkey://:s3cr/etP@h/0")
