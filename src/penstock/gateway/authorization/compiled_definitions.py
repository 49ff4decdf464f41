"""The present definitions, compiled: for decisions and detection, and for commands of sessions.

    PUBLISH !PBAC/CRES/a/b ──▶ right? ──▶ the gateway publishes the answer on that topic
                                                        │
    SUBSCRIBE !PBAC/CRES/# ──▶ a right to ask? ──▶ each answer: a right to this question?

Rules that hold here:
- All are taken over in the step in which the definitions are: no decision sees policies of
  one epoch and situations of another.
- Definitions that cannot be compiled close the gateway (`trouble`) until others come: what
  it cannot check, it denies.
- What was worked out for a session holds until rights, groups or roles change.
- In open mode everybody may give every command.
- An answer is read by those who may ask the question themselves, as their rights are when it
  is delivered, and who subscribed to such topics by name: `#` does not mean them.
- Nobody forges an answer: what a client publishes there is a question.
- Purposes have no say in it: an answer is no data of a topic.
- Where answers are not published, nobody subscribes to them, and nothing on a topic of commands
  is delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from penstock.cep.program import Program
from penstock.definitions import DefinitionSet
from penstock.definitions.access import AccessDefinitions, list_claims, make_broker_topics
from penstock.definitions.authorizer import make_capabilities, make_interaction
from penstock.definitions.events.program import compile_program
from penstock.definitions.set import Trust, trust_nothing
from penstock.errors import PenstockError
from penstock.gateway.session import Session
from penstock.model.document import Document, Key
from penstock.model.kinds import (
    Attributes,
    AuthorisationRule,
    Concern,
    Group,
    Right,
    Scenario,
    kinds_of,
)
from penstock.model.purposes import PurposeSet
from penstock.model.role_terms import ROLE_PREFIX
from penstock.model.topics import matches, parse_subscribed
from penstock.policy.access.engine import AccessEngine
from penstock.policy.access.principals import Membership, list_subjects
from penstock.policy.access.rules import BrokerTopics
from penstock.policy.capabilities import CapabilityBook
from penstock.policy.interaction import InteractionEngine
from penstock.policy.purposes.commands import ShowAffected, ShowCombined, parse_publish
from penstock.policy.purposes.rights import OPEN_RIGHTS, CommandRights, PurposeClaims, TypeGrant
from penstock.policy.purposes.settings import Notation
from penstock.policy.purposes.subscriptions import Subscription
from penstock.store.purpose_state import Excepted
from penstock.store.sessions import StoredSubscription
from penstock.telemetry import get_logger

_CLIENT: Final = "client:"
APART: Final = kinds_of(Concern.PURPOSES)
"""Kinds of which there may be millions; neither policies nor events refer to them."""
_EVENT_KINDS: Final = kinds_of(Concern.EVENTS)
_PEOPLE_KINDS: Final = frozenset({"group", "attributes"})
_CLAIM_KINDS: Final = frozenset({"right", "role", "authorisation-rule"})
"""Kinds that say who may claim and monitor what; who is meant, the engine of roles knows."""
_INTERACTION_KINDS: Final = kinds_of(Concern.INTERACTION) | {
    "hierarchy",
    "object",
    "plan",
    "scenario",
    "stream",
    "vocabulary",
}
"""Kinds that restrictions and transformations follow from."""
_CAPABILITY_KINDS: Final = kinds_of(Concern.TRUST) | {"stream"}
_KNOWN_LIMIT: Final = 65_536

_log = get_logger("gateway")


class Recompiled(NamedTuple):
    """What a change of definitions has changed."""

    access: bool = False
    """What decides: policies or claims."""
    program: bool = False


class CompiledDefinitions:
    """What definitions mean for access and detection."""

    def __init__(
        self,
        *,
        open_mode: bool = False,
        trusts: Trust = trust_nothing,
        read_key: Callable[[], bytes] | None = None,
        home: Callable[[], str] | None = None,
    ) -> None:
        self._open = open_mode
        self._trusts = trusts
        self._read_key = read_key
        self._home = home
        self.trouble: str | None = None
        """Why nothing can be decided, if so."""
        self.program = Program()
        self._begin()

    def _begin(self) -> None:
        self._definitions = DefinitionSet.empty(self._trusts)
        self._compiled = AccessDefinitions()
        self.claims = PurposeClaims(open_mode=self._open)
        self.broker_topics = BrokerTopics(open_mode=self._open)
        self.interaction = InteractionEngine()
        self.capabilities = CapabilityBook()

    @property
    def access(self) -> AccessEngine:
        """What decides."""
        return self._compiled.access

    def take(self, documents: Mapping[Key, Document], changed: Iterable[Key]) -> Recompiled:
        """Take over definitions of which these may differ from what was known."""
        anew = self.trouble is not None
        if anew:
            # What is held may be incomplete.
            before = self.access.roles
            self._begin()
            self.access.roles.adopt(before)
            changed = documents
        keys = [key for key in changed if key.kind not in APART]
        if not keys and not anew:
            return Recompiled()
        try:
            return self._take(documents, keys, anew=anew)
        except PenstockError as error:
            self.trouble = "the definitions cannot be compiled"
            _log.exception("policies cannot be compiled: everything is denied", error=error)
            return Recompiled(access=True)

    def _take(
        self, documents: Mapping[Key, Document], keys: list[Key], *, anew: bool
    ) -> Recompiled:
        found = self._definitions.change(
            put=[documents[key] for key in keys if key in documents],
            delete=[key for key in keys if key not in documents],
        )
        kinds = {key.kind for key in keys}
        access = self._compiled.take(found, keys) or anew
        if anew or kinds & _CLAIM_KINDS:
            self.claims = PurposeClaims(list_claims(found), open_mode=self._open)
            self.broker_topics = make_broker_topics(found, open_mode=self._open)
            access = True
        if anew or kinds & _INTERACTION_KINDS:
            self.interaction = make_interaction(found, self._read_key)
            access = True
        if anew or kinds & _CAPABILITY_KINDS:
            self.capabilities = make_capabilities(found, self._home)
            access = True
        touched = kinds & _EVENT_KINDS
        if not any(it.subject_filter for it in found.of(Scenario).values()):
            touched -= {"attributes"}  # only filters look at them
        program = anew or bool(touched)
        if program:
            made = compile_program(found.definitions)
            # People come and go: only where they are a scenario's subjects it is another.
            apart = touched <= _PEOPLE_KINDS
            program = anew or not apart or made.scenarios != self.program.scenarios
            self.program = made if program else self.program
        self._definitions = found
        self.trouble = None
        return Recompiled(access, program)


def named_clients(document: Document) -> Iterator[str]:
    """Yield the client identifiers that a definition gives something to."""
    body = document.body
    subjects = (*body.get("subjects", ()), *body.get("members", ()), body.get("subject", ""))
    named = subjects if document.kind != Attributes.kind else (document.name,)
    for it in named:
        if isinstance(it, str) and it.startswith(_CLIENT):
            yield it.removeprefix(_CLIENT)


def read_reservations(held: Mapping[Key, Document]) -> Iterator[tuple[str, PurposeSet]]:
    """Yield the filters of reservations with their purposes.

    Most share their purposes with others: each set is read and checked once.
    """
    known: dict[tuple[tuple[str, ...], tuple[str, ...]], PurposeSet] = {}
    for key, document in held.items():
        body = document.body
        said = (tuple(body.get("allow", ())), tuple(body.get("prohibit", ())))
        purposes = known.get(said)
        if purposes is None:
            if len(known) >= _KNOWN_LIMIT:
                known.clear()
            purposes = known[said] = PurposeSet.of(*said)
        yield key.name, purposes


class GrantedRights:
    """The rights that definitions grant."""

    __slots__ = ("_documents", "_known", "_membership", "_open", "_roles_of")
    kinds = kinds_of(Concern.COMMANDS)
    """What they follow."""

    def __init__(
        self, *, open_mode: bool, roles_of: Callable[[Session], Iterable[str]] = lambda _: ()
    ) -> None:
        self._open = open_mode
        self._roles_of = roles_of
        self._documents: dict[Key, Document] = {}
        self._known: dict[tuple[str, str], CommandRights] = {}
        self._membership: Membership | None = None

    def take(self, documents: Mapping[Key, Document], changed: Iterable[Key]) -> None:
        """Take over definitions of which these may differ from what was known."""
        for key in changed:
            if key.kind in self.kinds:
                self._documents.pop(key, None)
                if key in documents:
                    self._documents[key] = documents[key]
        self.forget()
        self._membership = None

    def forget(self, session: Session | None = None) -> None:
        """Forget what was worked out, of a session or of all: they may have other roles."""
        if session is None:
            self._known.clear()
        else:
            self._known.pop((session.principal, session.client_id), None)

    def of(self, session: Session) -> CommandRights:
        """Return what a session may command."""
        if self._open:
            return OPEN_RIGHTS
        who = (session.principal, session.client_id)
        known = self._known.get(who)
        if known is None:
            if len(self._known) >= _KNOWN_LIMIT:
                self._known.clear()
            known = self._known[who] = self._work_out(session)
        return known

    def is_among(self, session: Session, subjects: Collection[str]) -> bool:
        """Say whether some of these subjects mean a session."""
        return bool(subjects) and not self._names(session).isdisjoint(subjects)

    def list_members(self, subjects: Collection[str]) -> Excepted:
        """Return the users and clients that these subjects mean, those of groups included."""
        named = {it for it in subjects if not it.startswith("group:")}
        for key, document in self._documents.items():
            if key.kind == Group.kind:
                for member in document.body.get("members", ()):
                    sort, _, name = member.partition(":")
                    user, client = (name, None) if sort == "user" else ("", name)
                    groups = self._find_membership().groups_of(user, client)
                    if any(f"group:{it}" in subjects for it in groups):
                        named.add(member)
        users = {it.removeprefix("user:") for it in named if it.startswith("user:")}
        clients = {it.removeprefix("client:") for it in named if it.startswith("client:")}
        return Excepted(users, clients)

    def _find_membership(self) -> Membership:
        if self._membership is None:
            self._membership = Membership(
                Group.model_validate({"name": key.name, **document.body})
                for key, document in self._documents.items()
                if key.kind == Group.kind
            )
        return self._membership

    def _names(self, session: Session) -> set[str]:
        """Return every text by which definitions can mean a session."""
        user, client = session.user, session.client_id
        groups = self._find_membership().groups_of(user, client)
        return {*list_subjects(user, client, groups), *self._roles_of(session)}

    def _work_out(self, session: Session) -> CommandRights:
        names = self._names(session)
        given = [
            document.body
            for document in self._documents.values()
            if not names.isdisjoint(_subjects_of(document))
        ]
        return CommandRights(
            reserve=tuple(it for body in given for it in body.get("reserve", ())),
            presubscribe=tuple(it for body in given for it in body.get("presubscribe", ())),
            advertise=tuple(it for body in given for it in body.get("advertise", ())),
            define=tuple(
                TypeGrant(it["stream"], tuple(it["below"]))
                for body in given
                for it in body.get("define", ())
            ),
            administer=any(body.get("administer", False) for body in given),
        )


def _subjects_of(document: Document) -> Collection[str]:
    """Return who has what a right or an authorisation rule gives."""
    if document.kind == AuthorisationRule.kind:
        return (f"{ROLE_PREFIX}{document.body['role']}",)
    return document.body["subjects"] if document.kind == Right.kind else ()


_QOS = 0x03


class AnswerTopics:
    """The topics on which questions are asked, and answered in public."""

    __slots__ = ("_notation", "prefix", "published")

    def __init__(self, notation: Notation, *, published: bool = False) -> None:
        self._notation = notation
        self.prefix = notation.prefix
        """What only topics of commands begin with, where nothing but answers can be."""
        self.published = published

    def is_among(self, topic: str) -> bool:
        """Tell whether a topic is one of commands, where nothing but answers can be."""
        return topic.startswith(self.prefix)

    def is_filter(self, text: str) -> bool:
        """Tell whether a subscription is one to answers."""
        return self.is_among(text) and self._notation.is_question(text)

    def subscribe(self, session: Session, held: StoredSubscription, options: int) -> Subscription:
        """Make a subscription to answers: the engine of purposes does not know it."""
        return Subscription(
            session.client_id,
            parse_subscribed(held.filter),
            None,
            options & _QOS,
            options=options,
            identifier=held.identifier,
            owner=session.principal,
        )

    def listens(self, session: Session, topic: str) -> bool:
        """Tell whether a session has subscribed to the answer to a question."""
        return self.published and any(
            self.is_filter(it.text) and matches(it.filter, topic)
            for it in session.by_number.values()
        )

    def may_read(self, rights: CommandRights, topic: str) -> bool:
        """Tell whether somebody with these rights may read the answer on a topic."""
        if not self.published:
            return False
        try:
            question = parse_publish(topic, b"", self._notation)
        except PenstockError:
            return False
        return isinstance(question, ShowCombined | ShowAffected) and rights.may(question).allowed
