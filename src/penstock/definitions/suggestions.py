"""What the fields of a sample look like, why, and a draft of a stream and a view of it.

    rows ──▶ type, different values, nulls ──┬─ name, form of values, uniqueness ──▶ category
                                            └─ bounds, values ──▶ draft: stream, k-anonymous view

Rules that hold here:
- A suggestion has its reasons. Whoever declares the stream decides.
- When in doubt a field is a quasi-identifier rather than plain: what is too much can be taken away.
- The draft holds values of the sample only where a field has few, each of several records.
- What is drafted passes the checks of `apply`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

from penstock.definitions import DefinitionSet
from penstock.masks.fields import LEAST, MOST, NUMBERS, FieldType, read_text
from penstock.model.document import Document

# In English and German.
IDENTIFIERS: Final = """
id pid uid uuid guid ssn name firstname lastname surname fullname email mail phone mobile
telephone fax iban passport license licence insurance_number account login username user
patient customer client person employee mrn ip mac imei plate address street
vorname nachname kunde kundennr kundennummer kennung versichertennummer telefon strasse konto
"""
QUASI_IDENTIFIERS: Final = """
age birth birthday birthdate born dob zip zipcode postcode postal plz city town region state
county country nationality gender sex race ethnicity marital education job occupation
profession employer insurance company height weight lat lon latitude longitude location
place ward room date admission admitted discharge
alter geburt geburtsdatum geburtstag ort wohnort stadt land geschlecht beruf familienstand
"""
SENSITIVE: Final = """
diagnosis disease illness symptom icd treatment therapy medication drug result hiv covid
salary income wage debt credit religion party union orientation genetic allergy glucose
pulse pressure spo2 hba1c disability
diagnose krankheit befund behandlung medikament gehalt einkommen lohn religion konfession partei
schulden
"""
WORDS: Final[Mapping[str, frozenset[str]]] = {
    "identifier": frozenset(IDENTIFIERS.split()),
    "quasi-identifier": frozenset(QUASI_IDENTIFIERS.split()),
    "sensitive": frozenset(SENSITIVE.split()),
}
"""Words in names of fields that tell what they hold, in the order in which they count."""
FORMS: Final = {
    "an email address": re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+"),
    "a UUID": re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    "an IBAN": re.compile(r"[A-Z]{2}[0-9]{2}[ A-Z0-9]{11,34}"),
    "a phone number": re.compile(r"\+[0-9][0-9 ()/-]{6,20}"),
    "an IP address": re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}"),
}
SHARE: Final = 0.8
"""So many of the values must have a form."""
UNIQUE: Final = 0.95
FEW: Final = 20
"""Fewer records than this tell little by being different."""
MOST_LISTED: Final = 200
LEAST_RECORDS: Final = 2
"""Of so many records a value must be to stand in a draft."""
K: Final = 5
MOST_HELD: Final = 1_000
PYTHON: Final = {
    FieldType.BOOLEAN: bool,
    FieldType.DATE: date,
    FieldType.TIMESTAMP: datetime,
}
PADDED: Final = re.compile(r"-?0[0-9]")
NAME: Final = re.compile(r"[^a-z0-9]+")
CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class FieldSuggestion:
    """What a field looks like."""

    name: str
    type: FieldType
    optional: bool
    category: str
    reasons: tuple[str, ...]
    different: int
    records: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What the fields of a sample look like, and the draft."""

    fields: tuple[FieldSuggestion, ...]
    alone: int
    """Records that no other is like in all quasi-identifiers."""
    records: int
    documents: tuple[Document, ...]


def suggest(name: str, columns: Mapping[str, Sequence[Any]]) -> Suggestion:
    """Look at the columns of a sample; texts are read as what they write."""
    read = {field: _read(values) for field, values in columns.items()}
    fields = tuple(_look_at(field, kind, values) for field, (kind, values) in read.items())
    quasi = [it.name for it in fields if it.category == "quasi-identifier"]
    records = max((len(values) for _, values in read.values()), default=0)
    groups = Counter(zip(*(read[it][1] for it in quasi), strict=True)) if quasi else Counter()
    alone = sum(count == 1 for count in groups.values())
    documents = _draft(name, fields, {field: values for field, (_, values) in read.items()})
    DefinitionSet.build(documents)
    return Suggestion(fields, alone, records, tuple(documents))


def _read(values: Sequence[Any]) -> tuple[FieldType, list[Any]]:
    """Return the narrowest type that all values have, and the values of it."""
    known = [None if value == "" else value for value in values]
    present = [value for value in known if value is not None]
    for kind in (
        FieldType.INT, FieldType.LONG, FieldType.DOUBLE, FieldType.BOOLEAN, FieldType.DATE,
        FieldType.TIMESTAMP,
    ):  # fmt: skip
        found = [_as(kind, value) for value in present]
        if present and all(value is not None for value in found):
            made = iter(found)
            return kind, [None if value is None else next(made) for value in known]
    return FieldType.STRING, [None if value is None else str(value) for value in known]


def _as(kind: FieldType, value: Any) -> Any:
    """Return a value as one of a type, or None where it is none."""
    if isinstance(value, str):
        return _read_text(kind, value)
    if kind is FieldType.DOUBLE and type(value) in {int, float} and math.isfinite(value):
        return float(value)
    if kind in LEAST:
        fits = type(value) is int and LEAST[kind] <= value <= MOST[kind]
        return value if fits else None
    return value if type(value) is PYTHON.get(kind) else None


def _read_text(kind: FieldType, text: str) -> Any:
    # A leading zero means something: 07 is no number.
    if kind in NUMBERS and PADDED.match(text):
        return None
    if kind is not FieldType.TIMESTAMP:
        return read_text(kind, text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _look_at(name: str, kind: FieldType, values: Sequence[Any]) -> FieldSuggestion:
    present = [value for value in values if value is not None]
    different = len(set(present))
    category, reasons = _categorize(name, kind, present, different)
    optional = len(present) < len(values)
    return FieldSuggestion(name, kind, optional, category, reasons, different, len(values))


def _categorize(
    name: str, kind: FieldType, present: Sequence[Any], different: int
) -> tuple[str, tuple[str, ...]]:
    form = _find_form(present) if kind is FieldType.STRING else None
    if form is not None:
        return "identifier", (f"values look like {form}",)
    spelled = NAME.sub("_", CAMEL.sub("_", name).lower()).strip("_")
    words = {spelled, *spelled.split("_")}
    unique = len(present) >= FEW and different >= UNIQUE * len(present)
    told = f"{different:,} of {len(present):,} values are different"
    for category, known in WORDS.items():
        found = sorted(words & known)
        if found:
            more = (told,) if unique and category == "identifier" else ()
            return category, (f"the name says {found[0]!r}", *more)
    counted = kind in LEAST or kind is FieldType.STRING
    if unique and counted:
        return "identifier", (told,)
    if kind in {FieldType.DATE, FieldType.TIMESTAMP}:
        return "quasi-identifier", ("a date or time may be known from elsewhere",)
    if different > 1 and counted:
        return "quasi-identifier", (f"{different:,} values, which may be known from elsewhere",)
    return "plain", ("nothing points to a person",)


def _find_form(present: Sequence[Any]) -> str | None:
    for told, form in FORMS.items():
        fitting = sum(form.fullmatch(str(value)) is not None for value in present)
        if present and fitting >= SHARE * len(present):
            return told
    return None


def _draft(
    name: str, fields: Sequence[FieldSuggestion], columns: Mapping[str, Sequence[Any]]
) -> list[Document]:
    identifiers = [it for it in fields if it.category == "identifier"]
    subject = max(identifiers, key=lambda it: (it.different, not it.optional), default=None)
    declared = []
    for it in fields:
        more: dict[str, Any] = {"category": it.category} if it.category != "plain" else {}
        if it.optional:
            more["optional"] = True
        declared.append({"name": it.name, "type": it.type.value, **more})
    stream: dict[str, Any] = {"fields": declared}
    if subject is not None:
        stream = {"subject": subject.name, **stream}
    quasi, hidden = [], [it.name for it in identifiers]
    for it in fields:
        if it.category == "quasi-identifier":
            ranged = _range(it, columns[it.name])
            if ranged is None:
                hidden.append(it.name)
            else:
                quasi.append(ranged)
    view: dict[str, Any] = {"stream": name, "anonymizers": []}
    if quasi:
        # So many wait at most: else a file as small as the sample would be held back as a whole.
        delta = max(10 * K, min(MOST_HELD, fields[0].records // 4))
        groups = {"quasi_identifiers": quasi, "k": K, "delta": delta}
        view["anonymizers"] = [{"anonymizer": "k_anonymization", "keys": hidden, **groups}]
        if subject is None:
            view["accept_risk"] = ["no-subject"]
    elif hidden:
        view["anonymizers"] = [{"anonymizer": "suppression", "keys": hidden}]
    return [Document("stream", name, stream), Document("view", f"{name}-research", view)]


def _range(it: FieldSuggestion, values: Sequence[Any]) -> dict[str, Any] | None:
    """Return how a quasi-identifier is generalized; None where it can only be hidden."""
    present = [value for value in values if value is not None]
    if it.type in {FieldType.DATE, FieldType.TIMESTAMP}:
        low, high = min(present).year // 10 * 10, max(present).year // 10 * 10 + 9
        bounds = {"min": f"{max(low, 1):04}-01-01", "max": f"{high:04}-12-31"}
        return {"key": it.name, **bounds, "bucket_size": 1, "unit": "months"}
    if it.type in LEAST or it.type is FieldType.DOUBLE:
        low, high = _round_bounds(min(present), max(present))
        return {"key": it.name, "min": low, "max": high}
    counts = Counter(map(str, present))
    if it.type is not FieldType.STRING or not _may_be_listed(counts.values()):
        return None
    children = [{"value": value} for value in sorted(counts)]
    root = "*" if "*" not in counts else "any"
    return {"key": it.name, "hierarchy": {"value": root, "children": children}}


def _may_be_listed(counts: Iterable[int]) -> bool:
    found = list(counts)
    return 0 < len(found) <= MOST_LISTED and min(found) >= LEAST_RECORDS


def _round_bounds(low: float, high: float) -> tuple[int, int]:
    """Return bounds beyond the sample's, with one digit that is not zero in their distance."""
    step = 10 ** max(0, math.ceil(math.log10(max(1.0, high - low))) - 1)
    least, most = math.floor(low / step) * step, (math.floor(high / step) + 1) * step
    return least, most
