"""Requirements files in the forms in which such files are published, and patients for them.

Rules that hold here:
- Each form that is found in published files stands here once: other names of anonymizers, a
  category that is not theirs, buckets in a part of their own, whole numbers in a hierarchy,
  text in place of a number, one list of parameters or several.
- Insurers are those of the generator, so that its patients lie within the hierarchy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from penstock_lab.generate.hospital import generate
from penstock_lab.generate.words import INSURERS

BROKERS = "kafka1:19092,kafka2:19093,kafka3:19094"
K = 100
TYPES = {
    "id": "int32",
    "name": "string",
    "address": "string",
    "zip": "int32",
    "phone": "string",
    "gender": "string",
    "height": "int32",
    "weight": "int32",
    "age": "int32",
    "insurance_company": "int32",
    "insurance_number": "string",
    "diagnosis": "string",
    "glucose": "int32",
    "HbA1C": "float32",
    "medication": "string",
}
REGIONS = {str(digit): f"region {digit}" for digit in range(10)}


def write_file(*views: dict[str, Any], topic: str = "no-filter") -> bytes:
    """Write a file of these views."""
    fields = [{"name": name, "type": kind} for name, kind in TYPES.items()]
    schema = {"schemaType": "KAFKA_STRUCT", "name": "org.example.Patient", "fields": fields}
    config = {"bootstrapServer": BROKERS, "topic": topic, "dataSchema": schema}
    return json.dumps({"globalConfig": config, "streamProperties": views}, indent=2).encode()


def make_view(name: str, category: str, *anonymizers: dict[str, Any]) -> dict[str, Any]:
    return {"applicationId": name, "category": category, "anonymizers": anonymizers}


def make_anonymizer(name: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    return {"anonymizer": name, "parameters": parameters}


def average(milliseconds: int) -> dict[str, Any]:
    """Return a view of averages over a window."""
    given = {"windowSize": milliseconds, "keys": ["age"], "aggregationMode": "average"}
    return make_view(
        f"aggregation_{milliseconds}ms_window",
        "ATTRIBUTE_BASED",
        make_anonymizer("aggregation", given),
    )


def _bucketing(key: str, size: int, high: int) -> dict[str, Any]:
    return {"key": key, "bucketing": {"bucketSize": size, "range": [0, high]}}


def _insurers() -> dict[str, Any]:
    """Return a tree whose leaves are whole numbers."""
    leaves = [{"value": str(number)} for number, _ in INSURERS]
    groups = [
        {"value": f"group {place}", "children": leaves[place * 6 : place * 6 + 6]}
        for place in range(3)
    ]
    return {"value": "insurers", "children": groups}


K_ANONYMIZATION = make_anonymizer(
    "k_anonymization",
    {
        "keys": ["id", "name", "address", "phone", "insurance_number"],
        "k": K,
        "delta": 20000,
        "mu": 100,
        "beta": 50,
        "quasiIdentifiers": [
            _bucketing("zip", 500, 99999),
            _bucketing("age", 3, 100),
            _bucketing("height", 5, 225),
            _bucketing("weight", 5, 300),
            {
                "key": "gender",
                "hierarchy": {
                    "value": "(Male, Female, Non-Binary)",
                    "children": [{"value": it} for it in ("Male", "Female", "Non-Binary")],
                },
            },
            {"key": "insurance_company", "hierarchy": _insurers()},
        ],
    },
)


def _substitute(key: str, condition: dict[str, Any], substitute: str) -> dict[str, Any]:
    given = {"keys": [key], "conditionMap": condition, "substitutionList": [substitute]}
    return make_anonymizer("conditional_substitution", given)


FILES: dict[str, bytes] = {
    "default": write_file(make_view("baseline", "TUPLE_BASED"), average(200)),
    "windows": write_file(
        make_view("baseline", "TUPLE_BASED"),
        *(average(it) for it in (5, 10, 25, 50, 100, 150, 200, 500)),
    ),
    "all": write_file(
        make_view("baseline", "TUPLE_BASED"),
        make_view(
            "basic_tuple",
            "VALUE_BASED",
            make_anonymizer("blurring", {"keys": ["gender"]}, {"nFields": 7}),
            make_anonymizer("suppression", {"keys": ["diagnosis"]}),
            make_anonymizer("noise_methods", {"keys": ["glucose", "HbA1C"]}, {"noise": 0.2}),
        ),
        make_view(
            "generalization_buckets",
            "TUPLE_BASED",
            make_anonymizer("bucketizing", {"keys": ["age"], "bucketSize": 10}),
        ),
        make_view(
            "generalization",
            "TUPLE_BASED",
            make_anonymizer("generalization", {"keys": ["zip"], "generalizationMap": REGIONS}),
        ),
        make_view(
            "conditional_match",
            "TUPLE_BASED",
            _substitute("name", {"matchValue": "Henri Albrecht"}, "Peter Müller"),
        ),
        make_view(
            "conditional_range",
            "TUPLE_BASED",
            _substitute("age", {"matchRange": [18, 35.1]}, "young adult"),
        ),
        make_view(
            "conditional_regex",
            "TUPLE_BASED",
            _substitute("phone", {"matchRegex": r"^\d{5} \d{6}$"}, "XXXX - XXXXXXXX"),
        ),
        make_view(
            "shuffling",
            "ATTRIBUTE_BASED",
            make_anonymizer(
                "shuffling",
                {"windowSize": 25, "keys": ["name", "phone"], "shuffleIndividually": True},
            ),
        ),
        make_view(
            "aggregation_average",
            "ATTRIBUTE_BASED",
            make_anonymizer(
                "aggregation", {"windowSize": 25, "keys": ["age"], "aggregationMode": "average"}
            ),
        ),
        make_view(
            "univariate_microaggregation",
            "ATTRIBUTE_BASED",
            make_anonymizer(
                "univariate_micro_aggregation", {"windowSize": 25, "keys": ["glucose"], "k": 20}
            ),
        ),
        make_view("k_anonymization", "TABLE_BASED", K_ANONYMIZATION),
    ),
}
"""The forms of all files that were published to be run."""

DRAFT = write_file(
    make_view(
        "level_1",
        "VALUE_BASED",
        make_anonymizer("suppression", {"keys": [{"key": "diagnose"}]}),
        make_anonymizer("substitution", {"keys": [{"key": "name"}]}),
        make_anonymizer("bucketizing", {"keys": [{"key": "age"}], "bucketSize": -1}),
        make_anonymizer("generalization", {"keys": ["phone"], "generalizationMap": {}}),
        make_anonymizer("noise_methods", {"keys": ["gender"], "noise": "0.2"}),
    ),
    make_view(
        "level_2",
        "ATTRIBUTE_BASED",
        make_anonymizer("aggregation", {"windowSize": "1000", "keys": [{"key": "diagnosis"}]}),
        make_anonymizer("averaging", {"windowSize": "1000", "keys": [{"key": "diagnosis"}]}),
    ),
    make_view(
        "level_3", "TABLE_BASED", make_anonymizer("k_anonymization", {"windowSize": "1", "k": "4"})
    ),
    make_view(
        "level_4",
        "TABLE_BASED",
        make_anonymizer("l_diversity", {"windowSize": "1000", "k": "4", "l": "2"}),
    ),
)
"""A draft of a file: much is missing in it."""


def make_patients(count: int, seed: int = 1) -> Iterator[dict[str, Any]]:
    """Yield patients of the generator under the names that the files have for their fields."""
    genders = {"Diverse": "Non-Binary"}
    for batch in generate(count, seed):
        for row in batch.to_pylist():
            row |= {"id": row.pop("pid"), "HbA1C": row.pop("hba1c")}
            row["gender"] = genders.get(row["gender"], row["gender"])
            yield {name: row[name] for name in TYPES}
