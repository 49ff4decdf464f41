"""A requirements file as published, from Kafka to Kafka: topics, masks, windows and groups."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.components import KafkaCluster
from penstock.eventlog.kafka import KafkaLog
from tests.support.kafka.clusters import settings_of
from tests.support.pipeline.imported_views import import_file, run_to_the_end
from tests.support.pipeline.requirements_files import FILES, K, make_patients

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.needs("java", "jars"), pytest.mark.timeout(900)]

PATIENTS = 500
QUASI = ("zip", "age", "height", "weight", "gender", "insurance_company")


def test_a_published_file_runs_from_topic_to_topics(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = f"no-filter-{uuid.uuid4().hex[:8]}"
    (tmp_path / "penstock.yaml").write_text(
        f"kafka:\n  bootstrap: {kafka.bootstrap}\n  security: sasl_plaintext\n"
        f"  password: {{file: {kafka.admin_password_file}}}\n"
    )
    file = json.loads(FILES["all"])
    file["globalConfig"]["topic"] = topic
    chosen = {"baseline", "conditional_range", "aggregation_average", "k_anonymization"}
    file["streamProperties"] = [
        it for it in file["streamProperties"] if it["applicationId"] in chosen
    ]
    said = import_file(tmp_path, json.dumps(file).encode())
    assert any("kafka1:19092" in note and kafka.bootstrap in note for note in said["notes"])
    log = KafkaLog(settings_of(kafka))
    log.make_topic(topic)
    patients = list(make_patients(PATIENTS))
    log.topic(topic).append([json.dumps(it).encode() for it in patients])
    run_to_the_end(spark, tmp_path)
    found = {
        name: [json.loads(it.value) for it in log.topic(f"{topic}-{name}").read()]
        for name in chosen
    }
    # A topic holds the records as they came in; the file's floats are single ones.
    plain = [{**it, "HbA1C": pytest.approx(it["HbA1C"])} for it in patients]
    assert sorted(found["baseline"], key=lambda it: it["id"]) == plain
    ages = {it["age"] for it in found["conditional_range"]}
    assert "young adult" in ages
    assert not ages & {str(age) for age in range(18, 36)}
    assert sorted(it["id"] for it in found["aggregation_average"]) == [it["id"] for it in patients]
    assert {type(it["age"]) for it in found["aggregation_average"]} == {float}
    groups = Counter(tuple(it[name] for name in QUASI) for it in found["k_anonymization"])
    assert groups.total() == PATIENTS
    assert min(groups.values()) >= K
