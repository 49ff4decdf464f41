"""`penstock audit`: read, verify, prove and prune the audit log.

Rules that hold here:
- Only pruning needs the private key: for all else the public keys next to it, or given ones,
  suffice.
- Which keys to believe never comes from what is checked.
- Exit codes: 0 fine, 1 not as it was signed, 2 wrong usage, 3 something is unavailable.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.text import Text

from penstock.cli.output import json_option, print_json, show
from penstock.cli.privacy.audit_tail import tail
from penstock.cli.session import configuration, open_database
from penstock.errors import UsageError, quote

if TYPE_CHECKING:
    from penstock.config import Config
    from penstock.store.audit.signatures import AuditVerdict, Head, PublicKeys
    from penstock.store.database import Database

PROOF_LIMIT = 1_000_000

public_keys_option = click.option(
    "--public-keys",
    "keys_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The public keys to trust; default: those next to the signing key of this installation.",
)


@click.group("audit")
def command() -> None:
    """Read, verify, prove and prune the audit log."""


command.add_command(tail)


@contextmanager
def _opened(keys_file: Path | None) -> Iterator[tuple[Config, Database, PublicKeys]]:
    from penstock.store.audit.reader import newest_head
    from penstock.store.audit.signatures import PublicKeys

    settings = configuration()
    with open_database(settings) as database:
        if keys_file is None and newest_head(database) is None:
            yield settings, database, PublicKeys()
        else:
            yield settings, database, PublicKeys.load(keys_file or _own_keys(settings))


def _own_keys(settings: Config) -> Path:
    from penstock.store.audit.signatures import public_path

    return public_path(settings.audit.signing_key.path)


# --- verifying -------------------------------------------------------------------------------


@command.command("verify")
@click.option(
    "--head",
    "head_files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A head that was kept elsewhere: the log has to extend it; repeatable.",
)
@public_keys_option
@json_option
@click.pass_context
def verify_log(
    ctx: click.Context, head_files: tuple[Path, ...], keys_file: Path | None, as_json: bool
) -> None:
    """Compute every hash anew and compare with the signed heads.

    Finds any entry that was changed, removed, inserted or reordered, a truncated end and a forged
    head, and names the first bad entry. Whoever controls the database can set the whole log back
    to an older signed state; to detect that, pass a head that was kept elsewhere.
    """
    from penstock.store.audit.signatures import TamperedError, anchor_path, load_head
    from penstock.store.audit.verification import verify

    with _opened(keys_file) as (settings, database, keys):
        kept = [load_head(path) for path in head_files]
        anchor = anchor_path(settings.audit.signing_key.path)
        if anchor.exists():
            kept.append(load_head(anchor))
        verdict = verify(database, keys, kept=kept)
    data = {
        "ok": verdict.ok,
        "size": verdict.size,
        "root": verdict.root.hex(),
        "heads": verdict.heads,
        "pruned": verdict.pruned,
        "survivors": verdict.survivors,
        "first_bad": verdict.first_bad,
        "findings": [
            {"message": one.message, "entry": one.entry, "until": one.until}
            for one in verdict.findings
        ],
    }
    show(as_json, data, lambda target: _draw(target, verdict))
    if not verdict.ok:
        ctx.exit(TamperedError.exit_code)


def _draw(target: Console, verdict: AuditVerdict) -> None:
    if verdict.ok:
        words = f"{verdict.size} entries are as they were signed ({verdict.heads} signed heads)"
        target.print(Text.assemble(("ok: ", "bold green"), words))
        if verdict.pruned:
            left = f"; {verdict.survivors} of them are left" if verdict.survivors else ""
            target.print(f"entries before {verdict.pruned} were pruned, as signed{left}")
        return
    target.print(Text("the audit log does not match its signatures", "bold red"))
    for one in verdict.findings:
        target.print(Text.assemble("  ", one.message))
    if verdict.first_bad is not None:
        certain = next(one for one in verdict.findings if one.entry == verdict.first_bad)
        words = "first bad entry" if certain.until is None else "the first bad entry is not before"
        target.print(Text.assemble(f"{words}: ", (str(verdict.first_bad), "bold")))


@command.command()
@json_option
def head(as_json: bool) -> None:
    """Print the newest signed head, to keep it outside the database.

    The database notes its size, so that pruning keeps what connects it with the log.
    """
    from penstock.store.audit.log import note_witness

    with open_database() as database:
        found = _newest(database)
        note_witness(database, f"head {found.size}", found)
    _print_document(found.as_document(), as_json=as_json)


def _newest(database: Database) -> Head:
    from penstock.store.audit.reader import newest_head

    found = newest_head(database)
    if found is None:
        raise UsageError("the audit log is empty", fix="something has to be recorded first")
    return found


def _print_document(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
    else:
        print(json.dumps(document, ensure_ascii=False, indent=2))


@command.command()
@json_option
def keys(as_json: bool) -> None:
    """Print the public keys of the log, for auditors; PEM, or with --json also their ids."""
    from penstock.store.audit.signatures import PublicKeys

    found = PublicKeys.load(_own_keys(configuration()))
    if as_json:
        print_json([{"key": one, "pem": found.pem(one)} for one in found.ids])
    else:
        print(found.pem(), end="")


# --- pruning ---------------------------------------------------------------------------------


@command.command("prune")
@click.option("--dry-run", is_flag=True, help="Show what is due, and change nothing.")
@json_option
def prune_log(dry_run: bool, as_json: bool) -> None:
    """Remove entries beyond the age and number that the settings keep; needs the signing key.

    `audit.keep` and `audit.entries` are for grants, commands and changes, `audit.denials_keep`
    and `audit.denials_entries` for denials and notes of changed messages. A signed entry says
    what was pruned, and `penstock audit verify` goes on proving the rest. Running gateways do
    the same by themselves.
    """
    from penstock.store.audit.log import AuditLog
    from penstock.store.audit.pruning import Retention, plan_pruning, prune
    from penstock.store.audit.reader import newest_head

    settings = configuration()
    retention = Retention.of(settings.audit)
    with open_database(settings) as database:
        if newest_head(database) is None:
            done = None
        elif dry_run:
            with database.read() as connection:
                done = plan_pruning(connection, retention, time.time())
        else:
            log = AuditLog.open(database, settings.audit.signing_key)
            done = prune(log, retention)
            log.close()
    counts = {"denials": done.denials if done else 0, "others": done.others if done else 0}
    before = done.before if done else None
    data = {"pruned": not dry_run and done is not None, **counts, "before": before}

    def render(target: Console) -> None:
        if done is None:
            target.print("nothing is due")
            return
        words = "would be pruned" if dry_run else "were pruned"
        target.print(f"{done.denials} denials and {done.others} other entries {words}")
        target.print(f"all of them before entry {done.before}", style="dim")

    show(as_json, data, render)


# --- proving ---------------------------------------------------------------------------------


@command.command()
@click.argument("seq", metavar="[N]", type=int, required=False)
@click.option(
    "--since",
    type=click.Path(path_type=Path),
    metavar="HEAD",
    help="Prove that the log extends this head that was kept.",
)
@click.option(
    "--until",
    type=click.Path(path_type=Path),
    metavar="HEAD",
    help="With --since: up to this head instead of the newest.",
)
@public_keys_option
@json_option
def prove(
    seq: int | None,
    since: Path | None,
    until: Path | None,
    keys_file: Path | None,
    as_json: bool,
) -> None:
    """Print a proof that entry N is in the log, or that the log extends an older head.

    The proof is a JSON document that stands by itself: `penstock audit check-proof` checks
    it anywhere, without the database.
    """
    from penstock.store.audit.signatures import load_head
    from penstock.store.audit.verification import prove_consistency, prove_inclusion

    if (seq is None) == (since is None) or (until is not None and since is None):
        raise UsageError(
            "nothing to prove is named", fix="give the number of an entry, or --since HEAD"
        )
    with _opened(keys_file) as (_, database, believed):
        if since is None:
            _newest(database)
            proof = prove_inclusion(database, believed, seq or 0)
        else:
            last = load_head(until) if until else None
            proof = prove_consistency(database, believed, load_head(since), last)
    _print_document(proof, as_json=as_json)


@command.command("check-proof")
@click.argument("file", type=click.File("rb"))
@public_keys_option
@click.option("--key-id", help="Trust the key in the proof if it has this id.")
@json_option
def check(file: Any, keys_file: Path | None, key_id: str | None, as_json: bool) -> None:
    """Check a proof, offline; FILE may be - for standard input.

    The key to trust has to come from elsewhere: from --public-keys, from --key-id, or
    from this installation. The key in the proof alone proves nothing.
    """
    from penstock.store.audit.verification import check_proof

    try:
        proof = json.loads(file.read(PROOF_LIMIT))
    except (ValueError, RecursionError):
        raise UsageError(f"{quote(file.name)} is not JSON", fix="pass a proof") from None
    shown = check_proof(proof, _believed(proof, keys_file, key_id))
    show(
        as_json,
        {"ok": True, "proves": shown},
        lambda target: target.print(Text.assemble(("ok: ", "bold green"), shown)),
    )


def _believed(proof: Any, keys_file: Path | None, key_id: str | None) -> PublicKeys:
    from penstock.store.audit.signatures import PublicKeys, TamperedError
    from penstock.store.audit.verification import embedded_keys

    if key_id is not None:
        found = embedded_keys(proof)
        if found.ids != [key_id]:
            raise TamperedError(
                f"the proof is signed with {', '.join(found.ids)}, not with {quote(key_id)}"
            )
        return found
    path = keys_file or _own_keys(configuration())
    if keys_file is None and not path.exists():
        raise UsageError("there is no key to trust", fix="pass --public-keys FILE or --key-id ID")
    return PublicKeys.load(path)
