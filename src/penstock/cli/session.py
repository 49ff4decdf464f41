"""What a command works with: the configuration, the store, a gateway, and who is asking.

Rules that hold here:
- Settings, store and client library are imported when they are opened: a verb's `--help` loads
  none of them, and `penstock status` answers at once.
- The login name of the machine proves nothing; where it matters who somebody is, commands
  take `--as USER` and check the password that the gateway knows the user by.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click

from penstock.cli.output import Function
from penstock.errors import DeniedError, UnavailableError, UsageError, quote

if TYPE_CHECKING:
    from penstock.client import PurposeClient
    from penstock.config import Config
    from penstock.definitions import DefinitionSet
    from penstock.definitions.set import Trust
    from penstock.store.audit.log import AuditLog
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.audit.signatures import PublicKeys
    from penstock.store.consent_administration import ConsentAdministration
    from penstock.store.database import Database
    from penstock.store.definitions.checked import CheckedDefinitions
    from penstock.store.definitions.history import Definitions

ANSWER_SECONDS = 15.0
"""How long a gateway has to answer a CONNECT."""


def configuration() -> Config:
    """Return the settings: of the named file, of penstock.yaml here, else the defaults."""
    from penstock.config import defaults, find, load

    context = click.get_current_context(silent=True)
    named = context.find_root().obj if context else None
    path = find(Path(named) if named else None)
    return load(path) if path else defaults(Path.cwd())


@contextmanager
def open_database(config: Config | None = None) -> Iterator[Database]:
    """Open the store of this installation, for as long as the block lasts."""
    from penstock.store.database import Database

    settings = config or configuration()
    settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with Database.open(settings.store.connection_url()) as database:
        yield database


def refuse_missing_store(config: Config) -> None:
    """Say that there is no store yet: reading must not make an empty, permissive one."""
    scheme, _, path = config.store.url.partition(":///")
    if scheme == "sqlite" and not Path(path).exists():
        where = config.file or f"the defaults for {Path.cwd()}"
        raise UnavailableError(
            f"there is no store at {quote(path)} (named by {where})",
            fix="change to the folder of your penstock.yaml, or begin with `penstock init` "
            "and `penstock apply`",
        )


@contextmanager
def open_history() -> Iterator[Definitions]:
    """Open the documents of this installation, of all epochs, to show them."""
    from penstock.store.definitions.history import Definitions

    settings = configuration()
    refuse_missing_store(settings)
    with open_database(settings) as database:
        yield Definitions(database)


def believe_appointments(config: Config) -> Trust:
    """Return what tells whether an appointment is signed with a key of this installation."""
    from penstock.store.definitions.checked import trust_keys

    def load() -> PublicKeys:
        from penstock.store.audit.signatures import load_public_keys

        return load_public_keys(config.audit.signing_key)

    return trust_keys(load)


def read_home(config: Config) -> Callable[[], str]:
    """Return what tells the public key of this domain; it is made where there is none."""

    def read() -> str:
        from penstock.trust.keys import open_key

        return open_key(config.trust.key).key

    return read


@contextmanager
def open_definitions() -> Iterator[CheckedDefinitions]:
    """Open the definitions of this installation, to read what they mean."""
    from penstock.store.definitions.checked import CheckedDefinitions

    with open_history() as history:
        yield CheckedDefinitions(history, trusts=believe_appointments(configuration()))


class AuditedStore(NamedTuple):
    """A store whose audit log is open: what those work with who are asked in somebody's name."""

    config: Config
    database: Database
    checked: CheckedDefinitions
    epoch: int
    definitions: DefinitionSet
    log: AuditLog
    people: Pseudonyms


@contextmanager
def open_audited() -> Iterator[AuditedStore]:
    """Open the store with its audit log and the present definitions."""
    from penstock.store.audit.log import AuditLog
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.definitions.checked import CheckedDefinitions
    from penstock.store.definitions.history import Definitions
    from penstock.telemetry import configure

    config = configuration()
    refuse_missing_store(config)
    # Keys that are made at the first use are reported in words, not as JSON.
    configure(level=config.log.level, style="console")
    with open_database(config) as database:
        log = AuditLog.open(database, config.audit.signing_key)
        with closing(log):
            checked = CheckedDefinitions(Definitions(database), signer=log.signer)
            snapshot, definitions = checked.current()
            people = Pseudonyms.open(config.audit.pseudonym_key)
            yield AuditedStore(config, database, checked, snapshot.epoch, definitions, log, people)


@contextmanager
def change_definitions() -> Iterator[CheckedDefinitions]:
    """Open the definitions to change them; every change is recorded in the audit log."""
    from penstock.store.audit.log import AuditLog
    from penstock.store.audit.pseudonyms import Pseudonyms
    from penstock.store.definitions.checked import CheckedDefinitions, recorder
    from penstock.store.definitions.history import Definitions
    from penstock.telemetry import configure

    settings = configuration()
    # Keys that are made at the first use are reported in words, not as JSON.
    configure(level=settings.log.level, style="console")
    with open_database(settings) as database:
        log = AuditLog.open(database, settings.audit.signing_key)
        pseudonyms = Pseudonyms.open(settings.audit.pseudonym_key)
        try:
            record = recorder(log, pseudonyms)
            yield CheckedDefinitions(Definitions(database), record, signer=log.signer)
        finally:
            log.close()


def actor() -> str:
    """Return who is asking, for history and audit: PENSTOCK_ACTOR, else the login name."""
    named = os.environ.get("PENSTOCK_ACTOR")
    if named:
        return named
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def parse_address(to: str) -> tuple[str, int]:
    """Return host and port of a gateway."""
    try:
        parts = urlsplit(to)
        if parts.scheme == "mqtt" and parts.hostname:
            return parts.hostname, parts.port or 1883
    except ValueError:
        pass
    raise UsageError(f"{quote(to)} is not an address of a gateway", fix="write mqtt://HOST:PORT")


def connect(
    address: tuple[str, int], user: str, password: str | None, *, fix: str
) -> PurposeClient:
    """Return a client of a gateway, let in as a user; `fix` is for those who are not."""
    import queue

    from paho.mqtt.client import Client, MQTTv5
    from paho.mqtt.enums import CallbackAPIVersion

    from penstock.client import PurposeClient
    from penstock.client.commands import NoAnswerError

    client = PurposeClient(Client(CallbackAPIVersion.VERSION2, client_id=user, protocol=MQTTv5))
    client.on_refused = None
    if password is not None:
        client.username_pw_set(user, password)
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    client.on_connect = lambda *arguments: answers.put(arguments[3])
    client.connect(*address)
    client.loop_start()
    try:
        code = answers.get(timeout=ANSWER_SECONDS)
    except queue.Empty:
        disconnect(client)
        raise NoAnswerError(
            f"{user} got no answer to its CONNECT", fix="check that the gateway is up"
        ) from None
    if code.is_failure:
        disconnect(client)
        raise DeniedError(f"the gateway does not let {user} in: {code}", fix=fix)
    return client


def disconnect(client: PurposeClient) -> None:
    """Say goodbye to the gateway, and end the client's thread."""
    client.disconnect()
    client.loop_stop()


def ask_new_password(fix: str = "type it, or pipe it to standard input") -> str:
    """Ask for a password at the terminal, twice, or read a line of standard input."""
    if sys.stdin.isatty():
        password = str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise UsageError("the password is empty", fix=fix)
    return password


def authenticate(config: Config, user: str, password_file: Path | None) -> bool:
    """Check a user's password, read from a file or asked for; return whether it is right."""
    from penstock.config.secrets import SecretFile
    from penstock.gateway.connection.authentication import PASSWORD_LIMIT, PasswordFile, check_name

    check_name(user)
    passwords = config.gateway.authentication.passwords
    if passwords is None:
        raise UnavailableError(
            "no file of passwords is named, so that nobody can prove who they are",
            fix="set gateway.authentication.passwords in penstock.yaml",
        )
    if password_file is not None:
        password = SecretFile(password_file).read_text()
    elif sys.stdin.isatty():
        password = str(click.prompt(f"Password of {user}", hide_input=True, err=True))
    else:
        raise UsageError(
            f"the password of {quote(user)} cannot be asked for without a terminal",
            fix="give --password-file",
        )
    file = PasswordFile(passwords)
    file.load()
    given = password.encode()
    return len(given) <= PASSWORD_LIMIT and file.verify(file.user(user), given)


def asking_consent(name: str, *, required: bool) -> Callable[[Function], Function]:
    """Return what adds the options that say who asks about people's choices."""

    def add(function: Function) -> Function:
        about = "The user who asks; must have the right."
        named = click.option("--as", name, required=required, metavar="USER", help=about)
        proved = click.option(
            "--password-file",
            type=click.Path(path_type=Path),
            help="A file of mode 0600 that holds the user's password; default: ask for it.",
        )
        return named(proved(function))

    return add


@contextmanager
def open_consent() -> Iterator[ConsentAdministration]:
    """Open people's choices with their audit log, for as long as the block lasts."""
    from penstock.store.consent import ConsentBook
    from penstock.store.consent_administration import ConsentAdministration

    with open_audited() as opened:
        book = ConsentBook.open(opened.database, opened.config.consent.key)
        yield ConsentAdministration(
            book, opened.log, opened.people, opened.definitions, opened.epoch
        )


def prove(administration: ConsentAdministration, user: str, password_file: Path | None) -> None:
    """Refuse who does not know the password of the user that they say they are."""
    if not authenticate(configuration(), user, password_file):
        message = "wrong user name or password"
        raise administration.deny(user, "password", message, "`penstock password` sets one")
