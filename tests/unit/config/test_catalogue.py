from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from penstock.config.catalogue import keys_at, setting_at, settings_of
from penstock.config.secrets import Secret, SecretFile
from penstock.config.settings import Duration, Port, Settings, Size, TypeLabel, setting

Word = Annotated[str, Field(pattern=r"^[a-z]+$"), TypeLabel("a word", "small letters")]


class Inner(Settings):
    """What is inside."""

    wait: Annotated[Duration, Field(gt=0, le=5400)] = setting("1m", "How long.")
    room: Annotated[Size, Field(ge=1 << 20)] = setting("2MiB", "How much.")


class Outer(Settings):
    """What is outside."""

    word: Word = setting("a", "A word.")
    level: Literal["low", "high"] = setting("low", "How high.")
    maybe: Annotated[int, Field(ge=1, le=9)] | None = setting(None, "Perhaps.")
    port: Port = setting(1, "A port.")
    words: tuple[Word, ...] = setting(("a",), "Words.")
    secret: Secret | None = setting(None, "A secret.")
    key: SecretFile | None = setting(None, "A key.")
    inner: Inner = Field(default_factory=Inner)
    named: Mapping[Word, Inner] = setting({"one": {}}, "Groups by name.")
    plain: Mapping[Literal["x", "y"], Word] = setting({}, "Words by name.")
    flag: bool = setting(default=True, description="A flag.")
    place: Path = setting("/", "A path.")


@pytest.mark.parametrize(
    ("path", "kind", "bounds"),
    [
        ("word", "a word", ""),
        ("level", "one of low, high", ""),
        ("maybe", "a number", "1 to 9"),
        ("port", "a port", ""),
        ("words", "a list, each a word", ""),
        ("secret", "{file: PATH} or {env: NAME}", ""),
        ("secret.file", "{file: PATH} or {env: NAME}", ""),
        ("secret.env", "{file: PATH} or {env: NAME}", ""),
        ("key", "the path of a secret file", ""),
        ("inner", "a group of settings", ""),
        ("inner.wait", "a duration", "more than 0 to 90m"),
        ("inner.room", "a size", "at least 1MiB"),
        ("named", "{a word: a group of settings}", ""),
        ("named.any.wait", "a duration", "more than 0 to 90m"),
        ("plain", "{one of x, y: a word}", ""),
        ("plain.x", "a word", ""),
        ("flag", "true or false", ""),
        ("place", "a path", ""),
    ],
)
def test_each_setting_is_described(path: str, kind: str, bounds: str) -> None:
    found = setting_at(Outer, tuple(path.split(".")))
    assert found is not None
    assert (found.kind, found.bounds) == (kind, bounds)


@pytest.mark.parametrize(
    "path", ["x", "word.x", "secret.value", "inner.x", "inner.wait.x", "named.any.x", "plain.x.y"]
)
def test_there_are_no_others(path: str) -> None:
    assert setting_at(Outer, tuple(path.split("."))) is None


def test_what_can_stand_at_a_place() -> None:
    assert set(keys_at(Outer, ("inner",)) or {}) == {"wait", "room"}
    assert set(keys_at(Outer, ("named", "any")) or {}) == {"wait", "room"}
    assert keys_at(Outer, ("named",)) is None
    assert keys_at(Outer, ("plain",)) is None
    assert keys_at(Outer, ("word",)) is None


def test_all_are_listed_each_group_before_what_is_in_it() -> None:
    names = [one.name for one in settings_of(Outer)]
    assert names[7:14] == [
        "inner",
        "inner.wait",
        "inner.room",
        "named",
        "named.NAME.wait",
        "named.NAME.room",
        "plain",
    ]


def test_the_variable_follows_from_the_way() -> None:
    found = setting_at(Outer, ("named", "any", "wait"))
    assert found is not None
    assert found.variable == "PENSTOCK_NAMED__ANY__WAIT"
