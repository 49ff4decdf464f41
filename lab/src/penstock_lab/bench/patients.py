"""A made-up stream of patients and views of it, which several benchmarks run."""

from __future__ import annotations

import time
from typing import Any, Final

from penstock.definitions import DefinitionSet
from penstock.eventlog import Topic
from penstock.model.document import Document
from penstock_lab.generate.hospital import generate
from penstock_lab.generate.writers import to_json_lines

SECRET: Final = bytes(32)

FIELDS: Final = [
    {"name": "pid", "type": "int"},
    {"name": "name", "type": "string"},
    {"name": "address", "type": "string"},
    {"name": "zip", "type": "int"},
    {"name": "phone", "type": "string"},
    {"name": "gender", "type": "string"},
    {"name": "height", "type": "int"},
    {"name": "weight", "type": "int"},
    {"name": "age", "type": "int"},
    {"name": "insurance_company", "type": "int"},
    {"name": "insurance_number", "type": "string"},
    {"name": "diagnosis", "type": "string"},
    {"name": "glucose", "type": "int"},
    {"name": "hba1c", "type": "double"},
    {"name": "medication", "type": "string"},
]
SUPPRESSION: Final = {"anonymizer": "suppression", "keys": ["pid", "name", "address", "phone"]}
VIEWS: Final[dict[str, dict[str, Any]]] = {
    "pass_through": {},
    "value_based": {
        "anonymizers": [
            SUPPRESSION,
            {"anonymizer": "blurring", "keys": ["insurance_number"], "n_fields": 7},
            {"anonymizer": "bucketizing", "keys": ["age"], "bucket_size": 10},
            {"anonymizer": "noise", "keys": ["glucose"], "noise": 0.1},
        ]
    },
    "tuple_based": {
        "anonymizers": [
            {
                "anonymizer": "conditional_substitution",
                "keys": ["medication"],
                "condition_map": {"age": {"match_range": [0, 18]}},
                "substitution_list": ["withheld"],
            }
        ]
    },
    "windowed": {
        "anonymizers": [
            SUPPRESSION,
            {"anonymizer": "aggregation", "keys": ["glucose"], "aggregation_mode": "average"},
        ],
        "window": {"size": 25},
    },
    "k_anonymous": {
        "anonymizers": [
            {
                "anonymizer": "k_anonymization",
                "keys": ["pid", "name", "address", "phone", "insurance_number"],
                "quasi_identifiers": [
                    {"key": "zip", "min": 0, "max": 99_999},
                    {"key": "height", "min": 100, "max": 250},
                    {"key": "weight", "min": 20, "max": 300},
                    {"key": "age", "min": 0, "max": 120},
                    {"key": "glucose", "min": 0, "max": 1000},
                    {"key": "hba1c", "min": 0, "max": 20},
                ],
                "k": 100,
                "delta": 10_000,
            }
        ]
    },
}


def define() -> DefinitionSet:
    """Return the stream, its views, and one view more that only suppresses."""
    views = {**VIEWS, "four": {"anonymizers": [SUPPRESSION]}}
    documents = [
        Document("view", name, {"stream": "patients", **body}) for name, body in views.items()
    ]
    stream = Document("stream", "patients", {"fields": FIELDS, "subject": "pid"})
    return DefinitionSet.build([stream, *documents])


def fill(topic: Topic, rows: int, *, first: int = 0, together: int = 500) -> float:
    """Append patients, one millisecond for every fifty; return the seconds of appending.

    Those that are appended together have the time of the first.
    """
    spent = 0.0
    place = first
    for block in generate(rows, first=first):
        lines = to_json_lines(block).to_pylist()
        started = time.monotonic()
        for start in range(0, len(lines), together):
            topic.append(lines[start : start + together], milliseconds=(place + start) // 50)
        spent += time.monotonic() - started
        place += len(lines)
    return spent
