"""The settings of a Kafka cluster."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from penstock.config.secrets import SecretVariable
from penstock.config.sections.kafka import KafkaSettings

SECRET = SecretVariable("X")


@pytest.mark.parametrize("written", ["a:1", "a:1, b:65535", "[::1]:9092", "10.0.0.1:9092,k.x:1"])
def test_addresses_are_taken(written: str) -> None:
    settings = KafkaSettings(bootstrap=written, password=SECRET)
    assert settings.bootstrap == written.replace(" ", "")


@pytest.mark.parametrize("written", ["a", "a:", ":1", "a:0", "a:65536", "a:1,", "a:x", "[]:1"])
def test_other_addresses_are_refused(written: str) -> None:
    with pytest.raises(ValidationError, match="no address of a broker"):
        KafkaSettings(bootstrap=written, password=SECRET)


def test_a_cluster_needs_a_password_and_a_ca_needs_encryption() -> None:
    with pytest.raises(ValidationError) as caught:
        KafkaSettings.model_validate({"bootstrap": "a:1", "security": "sasl_plaintext", "ca": "c"})
    (error,) = caught.value.errors()
    assert [conflict.setting for conflict in error["ctx"]["conflicts"]] == ["password", "ca"]
