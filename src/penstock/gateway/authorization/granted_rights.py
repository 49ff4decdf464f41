"""What sessions may command, by the rights of the present epoch, and whose answers they may read.

    PUBLISH !PBAC/CRES/a/b ──▶ right? ──▶ the gateway publishes the answer on that topic
                                                        │
    SUBSCRIBE !PBAC/CRES/# ──▶ a right to ask? ──▶ each answer: a right to this question?

Rules that hold here:
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

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from penstock.errors import PenstockError
from penstock.gateway.session import Session
from penstock.model import kinds
from penstock.model.document import Document, Key
from penstock.model.role_terms import ROLE_PREFIX
from penstock.model.topics import matches, parse_subscribed
from penstock.policy.access.principals import Membership, list_subjects
from penstock.policy.purposes.commands import ShowAffected, ShowCombined, parse_publish
from penstock.policy.purposes.notation import Notation
from penstock.policy.purposes.rights import OPEN_RIGHTS, CommandRights
from penstock.policy.purposes.subscriptions import Subscription
from penstock.store.purpose_state import Excepted
from penstock.store.sessions import StoredSubscription

_KINDS: Final = kinds.kinds_of(kinds.Concern.COMMANDS)
_LIMIT: Final = 65_536


def names_client(document: Document) -> bool:
    """Say whether a definition gives something to a client by its identifier."""
    body = document.body
    subjects = (*body.get("subjects", ()), *body.get("members", ()), body.get("subject", ""))
    named = subjects if document.kind != kinds.Attributes.kind else (document.name,)
    return any(it.startswith("client:") for it in named if isinstance(it, str))


class GrantedRights:
    """The rights that definitions grant."""

    __slots__ = ("_documents", "_known", "_membership", "_open", "_roles_of")

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
            if key.kind in _KINDS:
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
            if len(self._known) >= _LIMIT:
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
            if key.kind == kinds.Group.kind:
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
                kinds.Group.model_validate({"name": key.name, **document.body})
                for key, document in self._documents.items()
                if key.kind == kinds.Group.kind
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
            for key, document in self._documents.items()
            if not names.isdisjoint(_subjects_of(document))
        ]
        return CommandRights(
            reserve=tuple(it for body in given for it in body.get("reserve", ())),
            presubscribe=tuple(it for body in given for it in body.get("presubscribe", ())),
            administer=any(body.get("administer", False) for body in given),
        )


def _subjects_of(document: Document) -> Collection[str]:
    """Return who has what a right or an authorisation rule gives."""
    if document.kind == kinds.AuthorisationRule.kind:
        return (f"{ROLE_PREFIX}{document.body['role']}",)
    return document.body["subjects"] if document.kind == kinds.Right.kind else ()


_QOS = 0x03


class AnswerTopics:
    """The topics on which questions are asked, and answered in public."""

    __slots__ = ("_notation", "published")

    def __init__(self, notation: Notation, *, published: bool = False) -> None:
        self._notation = notation
        self.published = published

    def is_among(self, topic: str) -> bool:
        """Tell whether a topic is one of commands, where nothing but answers can be."""
        return topic.startswith(self._notation.prefix)

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
