"""Keys of sealed streams by themselves: asked for, given out and taken through the broker.

    member: "I want the keys of type T, this lets me"   ──▶ !penstock/wants/NETWORK/OWNER/MEMBER
    owner:  what was sent last to a group, retained      ──▶ !penstock/keys/NETWORK/OWNER/GROUP
    all members: take what they have not taken

Rules that hold here:
- Every gateway of a domain does all of this over the one store of its domain: the state of a group
  changes once, whoever is first, and what is to be sent stands beside it. Where one gateway ends,
  any other goes on.
- Only members of the network are heard as askers; what they ask for is granted by capability. Who
  asks again soon has its answer already, and who was expelled gets none.
- A request is signed, and tells a time within `skew`: nobody repeats one later.
- What owners send proves itself, and is taken once and in order. Who missed something asks again.
- Keys that are due change here, and those of members whose capability ended or was revoked.
- All of it happens in a thread: the loop hands over what came, and sends what is to be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple
from uuid import UUID

from penstock.definitions.trust_checks import collect_revocations
from penstock.errors import PenstockError
from penstock.model.kinds import Capability, Stream
from penstock.store.definitions.documents import Snapshot
from penstock.store.key_groups import KeyOffice, KnownTypes
from penstock.telemetry import get_logger
from penstock.trust import capabilities
from penstock.trust.event_types import Resource, find_resources, type_id
from penstock.trust.key_messages import read_request, sign_request
from penstock.trust.keys import TrustError, fingerprint

REQUEST_BYTES: Final = 1 << 16
MESSAGE_BYTES: Final = 1 << 20
_WAITING: Final = 512
_BYTES: Final = 16 << 20
"""Of what owners sent and nobody looked at yet."""
_log = get_logger("gateway")


class Outgoing(NamedTuple):
    """What is to be published for other domains."""

    owner: str
    place: str
    """A group, or who asks."""
    payload: bytes
    retain: bool


class KeyExchange:
    """What one gateway does for the key groups of its domain."""

    def __init__(self, open_office: Callable[[], KeyOffice], *, skew: int, pause: int) -> None:
        """Take how far clocks may differ, and how long one waits between requests; in ms."""
        self._open_office = open_office
        self._skew = skew
        self._pause = pause
        self._office: KeyOffice | None = None
        self._requests: dict[str, bytes] = {}
        self._offers: dict[tuple[str, str], bytes] = {}
        self._held: Snapshot | None = None
        self._types = KnownTypes({})
        self._due = 0
        self._seen = -1
        self._sent: dict[UUID, bytes] = {}
        self._missed: set[UUID] = set()
        self._asked: dict[tuple[str, str], int] = {}
        self._refused: set[str] = set()
        self._again = False

    # --- on the loop ---

    def hear_request(self, member: str, payload: bytes) -> None:
        """Note what a member of the network asks for; the last of each counts."""
        if len(payload) <= REQUEST_BYTES and (
            member in self._requests or len(self._requests) < _WAITING
        ):
            self._requests[member] = payload

    def hear_offer(self, owner: str, group: str, payload: bytes) -> None:
        """Note what an owner sends to a group."""
        held = sum(map(len, self._offers.values()))
        if payload and len(payload) <= MESSAGE_BYTES and held + len(payload) <= _BYTES:
            self._offers[owner, group] = payload

    def forget_sent(self) -> None:
        """Send all of it again: the broker may have lost it."""
        self._again = True

    def prepare(self, snapshot: Snapshot, now: int) -> Callable[[], list[Outgoing]]:
        """Return what there is to do, in a thread: it returns what is to be published."""
        requests, self._requests = self._requests, {}
        offers, self._offers = self._offers, {}
        again, self._again = self._again, False
        return lambda: self._work(snapshot, now, requests, offers, again=again)

    # --- in a thread ---

    def _work(
        self,
        snapshot: Snapshot,
        now: int,
        requests: dict[str, bytes],
        offers: dict[tuple[str, str], bytes],
        *,
        again: bool,
    ) -> list[Outgoing]:
        if again:
            self._sent, self._seen = {}, -1
        office = self._office
        if office is None:
            office = self._office = self._open_office()
        if snapshot is not self._held:
            self._held, self._types, self._due = snapshot, KnownTypes(snapshot.documents), 0
        for member, payload in requests.items():
            self._answer(office, snapshot, member, payload, now)
        if now >= self._due:
            _, self._due = office.refresh(snapshot.documents, now)
        for (owner, group), payload in offers.items():
            self._take(office, owner, group, payload)
        return [*self._offer(office), *self._ask(office, snapshot, now)]

    def _answer(
        self, office: KeyOffice, snapshot: Snapshot, member: str, payload: bytes, now: int
    ) -> None:
        try:
            asked = read_request(payload)
            if asked.member != member or abs(now - asked.asked) > self._skew:
                raise TrustError("the request is somebody else's, or from another time")
            _, messages = office.admit(asked, snapshot.documents, now, apart=self._pause)
        except PenstockError as error:
            if member not in self._refused:
                self._refused.add(member)
                _log.warning(
                    "a request for keys is refused", key_id=fingerprint(member), error=error
                )
            return
        self._refused.discard(member)
        if messages:
            self._due = 0
            _log.info("a domain has got keys", key_id=fingerprint(member), count=len(messages))

    def _take(self, office: KeyOffice, owner: str, group: str, payload: bytes) -> None:
        try:
            id_ = UUID(hex=group)
        except ValueError:
            return
        resource = self._types.resources.get(id_)
        if owner == office.own.key:
            if self._sent.get(id_, payload) != payload:
                # Another gateway of ours was faster, or somebody wrote over it.
                self._sent.pop(id_)
                self._seen = -1
            return
        if resource is None or resource.owner != owner:
            return
        try:
            taken = office.take(payload, owner, self._types.resources)
        except PenstockError as error:
            _log.warning("keys of another domain are not believed", error=error)
            return
        if taken.missed:
            self._missed.add(id_)
        else:
            self._missed.discard(id_)
        if taken.taken:
            _log.info("took keys of another domain", key_id=fingerprint(owner), count=taken.taken)

    def _offer(self, office: KeyOffice) -> Iterator[Outgoing]:
        changes = office.keys.changes()
        if changes == self._seen:
            return
        self._seen = changes
        for id_, document in office.sent().items():
            if self._sent.get(id_) != document:
                self._sent[id_] = document
                yield Outgoing(office.own.key, id_.hex, document, retain=True)

    def _ask(self, office: KeyOffice, snapshot: Snapshot, now: int) -> Iterator[Outgoing]:
        """Yield requests for keys that are missing, where a capability gives a right to them."""
        own = office.own.key
        wanted = {
            it.body["event_type"]
            for key, it in snapshot.documents.items()
            if key.kind == Stream.kind and it.body.get("sealed") is not None
        }
        for event_type in self._types.types:
            if event_type.name not in wanted:
                continue
            named = type_id(event_type)
            missing = [
                it
                for it in find_resources(event_type, self._types.registry)
                if it.owner != own and (it.id in self._missed or not office.keys.holds(it.id, 0))
            ]
            for owner in {it.owner for it in missing}:
                place = (named, owner)
                if now < self._asked.get(place, 0) + self._pause:
                    continue
                lacking = [it for it in missing if it.owner == owner]
                token = self._find_capability(snapshot, own, owner, lacking, now)
                if token is not None:
                    self._asked[place] = now
                    asked = sign_request(office.request(named, token, now), office.own)
                    yield Outgoing(owner, own, asked, retain=False)

    def _find_capability(
        self, snapshot: Snapshot, own: str, owner: str, lacking: list[Resource], now: int
    ) -> str | None:
        for key, it in snapshot.documents.items():
            if key.kind != Capability.kind:
                continue
            try:
                held = capabilities.read(str(it.body.get("token", "")))
            except TrustError:
                continue
            if (
                held.owner == owner
                and held.links[-1].holder_key == own
                and any(resource.is_granted(held.grants) for resource in lacking)
                and held.object_to(now / 1000, collect_revocations(snapshot.documents)) is None
            ):
                return held.text
        return None
