"""A transformation at the gateway and in a view on Spark makes the same of each record."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession, types
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program uses

from penstock.definitions import DefinitionSet
from penstock.definitions.authorizer import make_authorizer
from penstock.masks.spark import mask_frame, spark_type
from penstock.model.document import Document
from penstock.pipeline.anonymizers.blueprint import Blueprint
from penstock.policy.access.requests import Message, make_request
from tests.support.scale import scaled

pytestmark = pytest.mark.needs("java")

FIELDS = [
    {"name": "age", "type": "int"},
    {"name": "born", "type": "date"},
    {"name": "city", "type": "string", "optional": True},
    {"name": "who", "type": "string"},
    {"name": "weight", "type": "double", "optional": True},
]
masks = st.lists(
    st.sampled_from(
        [
            {"anonymizer": "bucketizing", "keys": ["age"], "bucket_size": 7},
            {"anonymizer": "bucketizing", "keys": ["weight"], "bucket_size": 0.5},
            {"anonymizer": "bucketizing", "keys": ["born"], "bucket_size": 30},
            {"anonymizer": "suppression", "keys": ["city"]},
            {"anonymizer": "blurring", "keys": ["who"]},
        ]
    ),
    unique_by=str,
    min_size=1,
    max_size=4,
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "age": st.integers(-10, 120),
            "born": st.dates().map(lambda it: it.isoformat()),
            "who": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
        },
        optional={
            "city": st.sampled_from(["Berlin", "", "Köln"]),
            "weight": st.floats(0, 300).map(lambda it: round(it, 3)),
        },
    ),
    min_size=1,
    max_size=20,
)


@given(masks, st.sampled_from([[], ["city"], ["who", "weight"]]), rows)
@settings(max_examples=scaled(4), deadline=None, phases=[Phase.generate])
def test_gateway_and_view_agree(
    spark: SparkSession, masks: list[dict[str, Any]], remove: list[str], rows: list[dict[str, Any]]
) -> None:

    kept = [it for it in masks if it["keys"][0] not in remove]
    transformation = {"filter": "a", "stream": "s", "anonymizers": kept, "remove": remove}
    if not kept and not remove:
        return
    definitions = DefinitionSet.build(
        [
            Document("stream", "s", {"fields": FIELDS}),
            Document("transformation", "t", transformation),
            Document("view", "v", {"stream": "s", "transformation": "t"}),
        ]
    )
    authorizer = make_authorizer(definitions, read_key=lambda: b"k" * 32)
    decision = authorizer.authorize(make_request("a", payload=rows[0]))
    assert decision.reshaping is not None
    at_gateway: list[Any] = []
    for row in rows:
        message = Message("a", json.dumps(row).encode())
        made = decision.reshaping.apply(message, lambda: ({}, {}, {}, {}))
        at_gateway.append(made if isinstance(made, str) else json.loads(made.payload or b"null"))
    chain, behind = Blueprint.find(definitions, "v").chains(b"k" * 32)
    assert behind is None
    raw = types.StructType(
        [
            types.StructField(name, spark_type(it.type), nullable=True)
            for name, it in chain.schema.items()
        ]
    )
    lines = spark.createDataFrame([(json.dumps(it),) for it in rows], "line string")
    frame = lines.select(F.from_json("line", raw).alias("r")).select("r.*")
    result = mask_frame(frame, chain, identity=F.lit("1")).collect()
    in_view: list[Any] = []
    for found in result:
        said = found.asDict()
        if said.pop("rejected") is not None:
            in_view.append("rejected")
            continue
        texts = {k: it.isoformat() if hasattr(it, "isoformat") else it for k, it in said.items()}
        in_view.append({k: it for k, it in texts.items() if it is not None})
    assert [it if isinstance(it, dict) else "rejected" for it in at_gateway] == in_view
