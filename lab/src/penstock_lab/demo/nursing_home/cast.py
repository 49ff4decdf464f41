"""The cast of the nursing home's demonstration, and what each has received.

Rules that hold here:
- A round ends with a notice that everybody receives: what has not come before does not come.
  Messages that the gateway itself publishes are waited for.
- The state of emergencies is read from the store, as `penstock situation` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

from penstock.config import load
from penstock.store.audit.log import AuditLog
from penstock.store.audit.pseudonyms import Pseudonyms
from penstock.store.database import Database
from penstock.store.detection.situations import Situations
from penstock_lab.demo.nursing_home.clients import Clients
from penstock_lab.demo.stage import Place
from penstock_lab.demo.story import DemoFailedError, Story

END: Final = "notice/end-of-round"
FILTERS: Final = (
    "physiological/#", "location", "warning", "closecontact", "treatment", "bulletin", END,
)  # fmt: skip
WAIT_SECONDS: Final = 20.0
MEANWHILE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.05
_START: Final = datetime(2026, 3, 1, tzinfo=UTC)

Received = set[tuple[str, str]]
"""Topics, and the patients that messages were about."""
Situation = Mapping[tuple[str, str], str | None]


class Cast:
    """All clients, and the store behind the gateway."""

    def __init__(self, place: Place, listeners: Iterable[str]) -> None:
        self._place = place
        self._clients = Clients("127.0.0.1", place.port, place.passwords.get)
        self._listeners = tuple(listeners)
        self._got: dict[str, Received] = {name: set() for name in self._listeners}
        self._ended: dict[str, int] = dict.fromkeys(self._listeners, 0)
        self._rounds = 0
        self._requests: dict[str, int] = {}
        self._days = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._clients)
        config = load(self._place.configuration)
        database = self._stack.enter_context(Database.open(self._place.store_url))
        log = AuditLog.open(database, config.audit.signing_key)
        self._stack.callback(log.close)
        people = Pseudonyms.open(config.audit.pseudonym_key)
        self._store = Situations(database, log, people)
        for name in self._listeners:
            self._clients.listen(name, *FILTERS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    # --- what the cast does ---

    def publish(self, user: str, topic: str, **payload: Any) -> None:
        """Publish something that is allowed."""
        if not self._clients.publish(user, topic, payload):
            raise DemoFailedError(f"{user} may not publish to {topic}", fix="see the policies")

    def try_to_publish(self, user: str, topic: str, **payload: Any) -> bool:
        """Publish, and say whether the gateway allowed it."""
        return self._clients.publish(user, topic, payload)

    def sit_together(self, room: str, *patients: str) -> None:
        """Let the sensor of a room report who is there, twice in case a second ends between."""
        for _ in range(2):
            for patient in patients:
                self.publish(room, "location", pid=patient, location=room)

    def test(self, patient: str, *, positive: bool, request: int | None = None) -> None:
        """Let the laboratory answer a request, or the last warning that the physician heard."""
        self._collect()
        asked = self._requests[patient] if request is None else request
        date = self.next_day()
        self.publish(
            "laboratory", "result", pid=patient, result=positive, testDate=date, reqId=asked
        )

    def next_day(self) -> str:
        """Return a date after all that were given before."""
        self._days += 1
        return (_START + timedelta(days=self._days)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def set_by_hand(self, scenario: str, subject: str, situation: str | None, reason: str) -> None:
        """Ask for a situation, as `penstock situation start` and `end` do."""
        self._store.request(scenario, subject, situation, actor="officer", reason=reason)

    # --- what the cast sees ---

    def situations(self) -> dict[tuple[str, str], str]:
        """Return the situations that hold."""
        return {(it.scenario, it.subject): it.situation for it in self._store.current()}

    def history(self, scenario: str, subject: str) -> list[str]:
        """Return how a subject came through its situations."""
        steps = reversed(self._store.history(scenario, subject))
        return [f"{it.event}: {it.source or '⊥'} → {it.target or '⊥'}" for it in steps]

    def reasons(self, scenario: str, subject: str) -> list[str | None]:
        """Return the reasons of what was set by hand."""
        return [it.reason for it in reversed(self._store.history(scenario, subject))]

    def wait_for(self, wanted: Situation, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until these situations hold; None is none."""
        until = time.monotonic() + WAIT_SECONDS
        asked = time.monotonic()
        while True:
            held = self.situations()
            if all(held.get(instance) == situation for instance, situation in wanted.items()):
                return
            if time.monotonic() > until:
                raise DemoFailedError(
                    f"waited in vain for {dict(wanted)}; there is {held}",
                    fix="see `penstock doctor`",
                )
            if time.monotonic() - asked > MEANWHILE_SECONDS:
                asked = time.monotonic()
                meanwhile()
            time.sleep(_LOOK_SECONDS)

    def expect(self, story: Story, wanted: Mapping[str, Received], text: str) -> None:
        """Expect that everybody has received exactly this since the last time."""
        full = {name: wanted.get(name, set()) for name in self._listeners}
        got = self.take(full)
        story.expect(text, actual=got, wanted=full)

    def take(self, wanted: Mapping[str, Received] | None = None) -> dict[str, Received]:
        """End the round, and return what everybody has received."""
        self._rounds += 1
        self.publish("officer", END, pid="", round=self._rounds)
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until:
            self._collect()
            ended = all(it >= self._rounds for it in self._ended.values())
            arrived = all(topics <= self._got[who] for who, topics in (wanted or {}).items())
            if ended and arrived:
                break
            time.sleep(_LOOK_SECONDS)
        taken = {name: set(got) for name, got in self._got.items()}
        for got in self._got.values():
            got.clear()
        return taken

    def _collect(self) -> None:
        for user, topic, payload in self._clients.take():
            if topic == END:
                self._ended[user] = max(self._ended[user], payload.get("round", 0))
                continue
            patient = payload.get("pid", "")
            self._got[user].add((topic, patient))
            if topic == "warning" and user == "physician-1":
                self._requests[patient] = payload["time"]
