"""Masks: anonymization of single records, techniques by module.

    definitions → read_masks → check_masks(schema) → Chain ┬→ apply(record)   (gateway)
                                                           └→ spark.mask_frame (pipeline)

`spark` is imported by those who have Spark, and by nothing here.
"""

from penstock.masks.chain import (
    MASKS,
    Chain,
    check_masks,
    derive_schema,
    find_mask,
    read_mask,
    read_masks,
    split_anonymizer,
    unknown_parameter,
)
from penstock.masks.fields import Field, FieldType, Schema
from penstock.masks.mask import Mask, Rejected
from penstock.masks.supplies import Hierarchy, Keys, Supplies, Vault
from penstock.masks.tokenization import Tokenization

__all__ = [
    "MASKS",
    "Chain",
    "Field",
    "FieldType",
    "Hierarchy",
    "Keys",
    "Mask",
    "Rejected",
    "Schema",
    "Supplies",
    "Tokenization",
    "Vault",
    "check_masks",
    "derive_schema",
    "find_mask",
    "read_mask",
    "read_masks",
    "split_anonymizer",
    "unknown_parameter",
]
