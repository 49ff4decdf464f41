"""What tests at a Kafka of their own begin with."""

from __future__ import annotations

from penstock.components import KafkaCluster
from penstock.config.sections.brokers import KafkaSettings
from penstock.config.settings import folders


def settings_of(kafka: KafkaCluster, **more: object) -> KafkaSettings:
    return KafkaSettings.model_validate(
        {
            "bootstrap": kafka.bootstrap,
            "security": "sasl_plaintext",
            "password": {"file": str(kafka.admin_password_file)},
            "key": str(kafka.folder / "credentials.key"),
            **more,
        },
        context=folders(kafka.folder),
    )
