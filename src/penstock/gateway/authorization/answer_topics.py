"""Answers on the topics of the questions: who may subscribe to them, and who may read one.

    PUBLISH !PBAC/CRES/a/b ──▶ right? ──▶ the gateway publishes the answer on that topic
                                                        │
    SUBSCRIBE !PBAC/CRES/# ──▶ a right to ask? ──▶ each answer: a right to this question?

Rules that hold here:
- An answer is read by those who may ask the question themselves, as their rights are when it
  is delivered, and who subscribed to such topics by name: `#` does not mean them.
- Nobody forges an answer: what a client publishes there is a question.
- Purposes have no say in it: an answer is no data of a topic.
- Where answers are not published, nobody subscribes to them, and nothing on a topic of commands
  is delivered.
"""

from __future__ import annotations

from penstock.errors import PenstockError
from penstock.gateway.session import Session
from penstock.model.topics import matches, parse_subscribed
from penstock.policy.purposes.commands import ShowAffected, ShowCombined, parse_publish
from penstock.policy.purposes.notation import Notation
from penstock.policy.purposes.rights import CommandRights
from penstock.policy.purposes.subscriptions import Subscription
from penstock.store.sessions import StoredSubscription

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
