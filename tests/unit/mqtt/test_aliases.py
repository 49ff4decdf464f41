import pytest

from penstock.mqtt import Aliases, Properties, ProtocolError, Publish, TopicAliasError


def message(topic: str, alias: int) -> Publish:
    return Publish.of(topic, b"x", properties=Properties(topic_alias=alias, message_expiry=1))


def test_an_alias_stands_for_the_topic_it_was_introduced_with() -> None:
    aliases = Aliases(2)
    for topic in ("a/b", "c/ö"):
        aliases.expand(message(topic, 1))
        short = message("", 1)
        aliases.expand(short)
        assert short.topic == topic
        assert (
            short.to_v5(short.properties.kept)
            == Publish.of(topic, b"x", properties=Properties(message_expiry=1)).to_v5()
        )


def test_messages_without_alias_pass() -> None:
    plain = Publish.of("a")
    Aliases(0).expand(plain)
    assert plain == Publish.of("a")


@pytest.mark.parametrize("topic", ["a", ""])
def test_an_alias_above_the_maximum_is_refused(topic: str) -> None:
    with pytest.raises(TopicAliasError, match="3 is above 2"):
        Aliases(2).expand(message(topic, 3))
    with pytest.raises(TopicAliasError, match="1 is above 0"):
        Aliases(0).expand(message(topic, 1))


def test_an_alias_that_was_never_introduced_is_a_protocol_error() -> None:
    aliases = Aliases(2)
    aliases.expand(message("a", 1))
    with pytest.raises(ProtocolError, match="never introduced"):
        aliases.expand(message("", 2))
