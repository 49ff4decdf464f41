import json
from copy import deepcopy
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.errors import PenstockError, UsageError
from penstock.store.audit.entry import Entry, Outcome
from penstock.store.audit.log import AuditLog
from penstock.store.audit.signatures import Head, PublicKeys, Signer, TamperedError
from penstock.store.audit.verification import (
    check_proof,
    embedded_keys,
    prove_consistency,
    prove_inclusion,
)
from penstock.store.database import Database

SIGNER = Signer.generate()
KEYS = SIGNER.public_keys


@pytest.fixture
def log(database: Database) -> AuditLog:
    return AuditLog(database, SIGNER)


@pytest.fixture
def heads(log: AuditLog) -> list[Head]:
    return [
        log.append([Entry.make("x", Outcome.DONE, stream="ä", count=n) for n in range(size)])
        for size in (1, 4, 2, 13)
    ]


def travelled(proof: dict[str, Any]) -> Any:
    """The proof as it comes out of a file."""
    return json.loads(json.dumps(proof))


def test_every_entry_can_be_proved(log: AuditLog, heads: list[Head]) -> None:
    for seq in range(heads[-1].size):
        proof = travelled(prove_inclusion(log.database, KEYS, seq))
        assert check_proof(proof, KEYS) == (
            f"entry {seq} is in the log of 21 entries signed by {SIGNER.key}"
        )


def test_every_pair_of_heads_can_be_connected(log: AuditLog, heads: list[Head]) -> None:
    for at, first in enumerate(heads):
        for second in heads[at:]:
            proof = travelled(prove_consistency(log.database, KEYS, first, second))
            assert "extends" in check_proof(proof, KEYS)
    newest = prove_consistency(log.database, KEYS, heads[0])
    assert newest["second"] == heads[-1].as_document()


def test_a_proof_brings_its_key(log: AuditLog, heads: list[Head]) -> None:
    proof = travelled(prove_inclusion(log.database, KEYS, 3))
    assert embedded_keys(proof).ids == [SIGNER.key]
    check_proof(proof, embedded_keys(proof))
    with pytest.raises(TamperedError, match="not known"):
        check_proof(proof, PublicKeys())


def test_what_is_not_there_cannot_be_proved(log: AuditLog, heads: list[Head]) -> None:
    for seq in (-1, 21, 10**12):
        with pytest.raises(UsageError, match=f"no entry {seq} .* choose one from 0 to 20"):
            prove_inclusion(log.database, KEYS, seq)
    foreign = SIGNER.sign(99, bytes(32), 1)
    with pytest.raises(TamperedError, match="cannot be connected"):
        prove_consistency(log.database, KEYS, foreign)
    with pytest.raises(TamperedError, match="does not show"):
        prove_consistency(log.database, KEYS, SIGNER.sign(5, bytes(32), 1))


def test_an_empty_log_proves_nothing(log: AuditLog) -> None:
    with pytest.raises(UsageError, match="the log is empty"):
        prove_inclusion(log.database, KEYS, 0)


def tamper(log: AuditLog, statement: str) -> None:
    with log.database.write() as connection:
        if log.database.is_postgresql:
            connection.execute(sa.text("DROP TRIGGER audit_entries_guard ON audit_entries"))
        else:
            connection.execute(sa.text("DROP TRIGGER audit_entries_no_update"))
        connection.execute(sa.text(statement))


def test_a_changed_entry_gives_no_proof(log: AuditLog, heads: list[Head]) -> None:
    tamper(log, "UPDATE audit_entries SET kind='y' WHERE seq=3")
    with pytest.raises(TamperedError, match="does not lead from entry 3"):
        prove_inclusion(log.database, KEYS, 3)
    prove_inclusion(log.database, KEYS, 4)


def test_a_changed_hash_gives_no_proof(log: AuditLog, heads: list[Head]) -> None:
    tamper(log, "UPDATE audit_entries SET hashes='short' WHERE seq=7")
    with pytest.raises(TamperedError, match="entry 7 or the hashes kept with it are missing"):
        prove_inclusion(log.database, KEYS, 6)


FORGERIES: list[tuple[list[str | int], Any]] = [
    (["entry", "kind"], "y"),
    (["entry", "seq"], 4),
    (["entry", "seq"], -1),
    (["entry", "seq"], 10**30),
    (["entry", "seq"], True),
    (["entry", "details"], {"count": 2.0}),
    (["entry", "details"], "\ud800"),
    (["entry", "more"], 1),
    (["entry"], {}),
    (["entry"], None),
    (["path"], []),
    (["path"], None),
    (["path"], ["00" * 32] * 5),
    (["path"], ["00" * 32] * 1000),
    (["path", 0], "00" * 32),
    (["path", 0], 5),
    (["head", "size"], 20),
    (["head", "root"], "00" * 32),
    (["head", "signature"], "00" * 64),
    (["head", "key"], "00" * 16),
    (["head"], None),
    (["proof"], "consistency"),
    (["version"], 2),
]


@pytest.mark.parametrize(("place", "value"), FORGERIES)
def test_forged_proofs_are_refused(
    log: AuditLog, heads: list[Head], place: list[str | int], value: Any
) -> None:
    proof: Any = deepcopy(prove_inclusion(log.database, KEYS, 3))
    target = proof
    for step in place[:-1]:
        target = target[step]
    target[place[-1]] = value
    with pytest.raises(PenstockError) as raised:
        check_proof(proof, KEYS)
    assert isinstance(raised.value, TamperedError | UsageError)


@pytest.mark.parametrize("proof", [None, [], 5, "proof", {}, {"proof": "inclusion"}])
def test_what_is_no_proof_is_refused(proof: Any) -> None:
    with pytest.raises(UsageError, match="is not a proof"):
        check_proof(proof, KEYS)
    with pytest.raises(UsageError, match="is not a proof"):
        embedded_keys(proof)


def test_forged_consistency_is_refused(log: AuditLog, heads: list[Head]) -> None:
    proof: Any = prove_consistency(log.database, KEYS, heads[1], heads[3])
    for name, value in [
        ("first", heads[0].as_document()),
        ("second", heads[2].as_document()),
        ("path", proof["path"][1:]),
        ("path", [*proof["path"][:-1], "00" * 32]),
        ("first", SIGNER.sign(heads[1].size, bytes(32), 1).as_document()),
    ]:
        with pytest.raises(TamperedError, match="does not show"):
            check_proof(proof | {name: value}, KEYS)
    swapped = proof | {"first": proof["second"], "second": proof["first"]}
    with pytest.raises(TamperedError, match="does not show"):
        check_proof(swapped, KEYS)


def test_heads_of_two_keys_can_be_connected(database: Database) -> None:
    first = AuditLog(database, SIGNER).append([Entry.make("x", Outcome.DONE)])
    new = Signer.generate()
    both = Signer(new._private, known=KEYS)
    second = AuditLog(database, both).append([Entry.make("x", Outcome.DONE)])
    proof = travelled(prove_consistency(database, both.public_keys, first, second))
    assert embedded_keys(proof).ids == [SIGNER.key, new.key]
    check_proof(proof, embedded_keys(proof))
    with pytest.raises(TamperedError, match="not known"):
        check_proof(proof, KEYS)
