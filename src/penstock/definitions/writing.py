"""Writes documents for people (YAML) and machines (JSON); both can be applied again."""

from __future__ import annotations

import json
from collections.abc import Iterable

import yaml

from penstock.model.document import Document


def write_yaml(documents: Iterable[Document]) -> str:
    """Return the documents as one YAML text."""
    return "---\n".join(
        yaml.safe_dump(document.fields(), sort_keys=False, allow_unicode=True, width=100)
        for document in documents
    )


def write_json(documents: Iterable[Document]) -> str:
    """Return the documents as one JSON list."""
    return json.dumps([document.fields() for document in documents], ensure_ascii=False)
