"""Sends what is in the outbox: alerts to teams, notes to people and front ends, by e-mail too.

    notice ─┬─ alert ──▶ the contact of the service that failed: e-mail, SMS
            └─ done ───▶ the person: e-mail, SMS; or a signed call to the front end

Rules that hold here:
- Texts have the placeholders of a fixed list, replaced once: what is put in is never read again.
  None of them names a person.
- An alert names the service, the control and the request, never whom it is about.
- Tries are spaced like those of services, and end; what is given up stays as a dead letter.
- No text gets into the header of an e-mail but those made here, and a header has no line ends:
  addresses are of the plain form, and the library refuses the rest.
- With starttls or tls nothing is said before the connection is encrypted and the server's
  certificate checked; what fails that fails the e-mail. Every wait is bounded, and a failure is a
  short code that names nobody.
"""

from __future__ import annotations

import json
import random
import smtplib
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from typing import Final

from penstock.clock import utc_now
from penstock.config import Config
from penstock.config.rights import EmailSettings
from penstock.config.secrets import Secret
from penstock.definitions import DefinitionSet
from penstock.errors import UnavailableError
from penstock.model.kinds import ControlPublisher, ControlSubscriber
from penstock.model.kinds.controls import PLACEHOLDER, is_email, is_mobile
from penstock.rights.dispatch.http import Caller
from penstock.rights.dispatch.message import (
    IDEMPOTENCY_KEY,
    NOT_CONFIGURED,
    SENT,
    SIGNATURE,
    Dispatched,
    Outcome,
    Signing,
    failed,
    find_trouble,
)
from penstock.store.rights.outbox import Notice, NoticeKind, Outbox

_TROUBLES: Final = (
    (UnavailableError, "credentials"),
    (smtplib.SMTPNotSupportedError, "tls"),
    (TimeoutError, "timeout"),
    (ssl.SSLError, "tls"),
    (OSError, "unreachable"),  # and all that the library has of its own
    (ValueError, "no-address"),
)


class Mailer:
    """Sends e-mails."""

    def __init__(self, settings: EmailSettings, timeout: float) -> None:
        self._settings = settings
        self._timeout = timeout

    def send(self, address: str, title: str, text: str, identity: str) -> Dispatched:
        """Send an e-mail; `identity` is the same when it is sent again."""
        if self._settings.host is None:
            return NOT_CONFIGURED
        if not is_email(address):
            return failed("no-address")
        try:
            self._send(self._compose(address, title, text, identity))
        except smtplib.SMTPResponseException as error:
            refused = isinstance(error, smtplib.SMTPAuthenticationError)
            return failed("credentials") if refused else failed("smtp", str(error.smtp_code))
        except smtplib.SMTPRecipientsRefused as error:
            return failed("smtp", str(next(iter(error.recipients.values()), (0,))[0]))
        except (UnavailableError, OSError, ValueError) as error:
            return find_trouble(error, _TROUBLES)
        return SENT

    def _send(self, message: EmailMessage) -> None:
        own = self._settings
        with self._connect() as server:
            if own.username is not None and own.password is not None:
                server.login(own.username, own.password.read_text())
            server.send_message(message)

    def _compose(self, address: str, title: str, text: str, identity: str) -> EmailMessage:
        message = EmailMessage(policy=SMTP)
        message["From"] = self._settings.sender
        message["To"] = address
        message["Subject"] = title
        message["Date"] = formatdate()
        message["Message-ID"] = f"<{identity}@{self._settings.sender.rpartition('@')[2]}>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text)
        return message

    def _connect(self) -> smtplib.SMTP:
        own = self._settings
        host = own.host or ""
        if own.security == "none":
            return smtplib.SMTP(host, own.port, timeout=self._timeout)
        context = ssl.create_default_context(cafile=own.ca)
        if own.security == "tls":
            return smtplib.SMTP_SSL(host, own.port, timeout=self._timeout, context=context)
        server = smtplib.SMTP(host, own.port, timeout=self._timeout)
        try:
            server.starttls(context=context)
        except BaseException:
            server.close()
            raise
        return server


TRIES: Final = 12
FIRST_WAIT: Final = timedelta(seconds=5)
LONGEST_WAIT: Final = timedelta(hours=1)
FRONT_END: Final = "publisher "
"""Before the name of a front end, where its key is derived: a service may have the same name."""
ALERT_TITLE: Final = "A service did not honour a privacy request"
ALERT_TEXT: Final = (
    "The service {subscriber} did not do its part of the privacy request {request}\n"
    "({control}: {action}), handed in on {date}.\n\n"
    "Look: penstock requests show {request}\n"
    "Once it works again: penstock requests redrive {request}"
)


def render(template: str, values: Mapping[str, str]) -> str:
    """Put values into a text, each once; what has no value stays as it is."""
    return PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)


class NoticeSender:
    """Sends notices."""

    def __init__(
        self,
        caller: Caller,
        signing: Signing,
        mailer: Mailer,
        *,
        sms_url: str | None = None,
        sms_token: Secret | None = None,
        office: str | None = None,
    ) -> None:
        self._caller = caller
        self._signing = signing
        self._mailer = mailer
        self._sms_url = sms_url
        self._sms_token = sms_token
        self._office = office

    @classmethod
    def open(cls, config: Config, secret: bytes, caller: Caller) -> NoticeSender:
        """Make a sender under the settings."""
        own = config.rights
        return cls(
            caller,
            Signing(secret),
            Mailer(own.email, own.timeout),
            sms_url=own.sms.url,
            sms_token=own.sms.token,
            office=own.office,
        )

    def alert_channels(self, subscriber: ControlSubscriber | None) -> tuple[str, ...]:
        """Return how somebody is alerted when a service fails."""
        found = []
        if subscriber is not None and subscriber.contact_email:
            found.append("email")
        if subscriber is not None and subscriber.contact_mobile:
            found.append("sms")
        return tuple(found) or (("email",) if self._office else ())

    def send(self, notice: Notice, definitions: DefinitionSet) -> Dispatched:
        """Send a notice."""
        values = {
            "action": notice.action,
            "control": notice.control,
            "date": f"{notice.at:%Y-%m-%d}",
            "publisher": notice.publisher,
            "request": notice.request,
        }
        if notice.kind is NoticeKind.ALERT:
            return self._alert(notice, definitions, values)
        publisher = definitions.get(ControlPublisher, notice.publisher)
        if publisher is None:
            return failed("not-defined")
        if notice.channel == "in-client":
            return self._call(notice, publisher)
        title, text = render(publisher.title, values), render(publisher.text, values)
        return self._tell(notice, notice.address, title, text)

    def _alert(
        self, notice: Notice, definitions: DefinitionSet, values: dict[str, str]
    ) -> Dispatched:
        service = definitions.get(ControlSubscriber, notice.subscriber)
        if notice.channel == "sms":
            address = (service.contact_mobile if service else None) or ""
        else:
            address = (service.contact_email if service else None) or self._office or ""
        text = render(ALERT_TEXT, {**values, "subscriber": notice.subscriber})
        return self._tell(notice, address, ALERT_TITLE, text)

    def _tell(self, notice: Notice, address: str, title: str, text: str) -> Dispatched:
        if notice.channel == "email":
            return self._mailer.send(address, title, text, notice.id)
        if self._sms_url is None:
            return NOT_CONFIGURED
        if not is_mobile(address):
            return failed("no-address")
        try:
            token = self._sms_token.read_text() if self._sms_token else ""
        except UnavailableError:
            return failed("credentials")
        body = json.dumps({"to": address, "text": text}, ensure_ascii=False).encode()
        headers = {IDEMPOTENCY_KEY: notice.id}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return _outcome(self._caller.post(self._sms_url, body, headers))

    def _call(self, notice: Notice, publisher: ControlPublisher) -> Dispatched:
        """Tell the front end: it knows by its own key whom the request is about."""
        if publisher.endpoint is None:
            return failed("not-defined")
        content = {
            "request": notice.request,
            "key": notice.key,
            "control": notice.control,
            "status": "COMPLETED",
        }
        body = json.dumps(content, separators=(",", ":")).encode()
        signature = self._signing.sign(FRONT_END + publisher.name, body)
        headers = {IDEMPOTENCY_KEY: notice.id, SIGNATURE: signature}
        return _outcome(self._caller.post(publisher.endpoint, body, headers))


class NoticeWorker:
    """Works on the outbox."""

    def __init__(
        self,
        outbox: Outbox,
        definitions: Callable[[], DefinitionSet],
        sender: NoticeSender,
        *,
        name: str,
        lease: float,
        clock: Callable[[], datetime] = utc_now,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._outbox = outbox
        self._definitions = definitions
        self._sender = sender
        self._name = name
        self._lease = lease
        self._clock = clock
        self._draw = draw

    def take(self, limit: int) -> list[Notice]:
        """Lease notices that are due."""
        return self._outbox.lease(self._name, limit, self._lease)

    def handle(self, notice: Notice) -> Dispatched:
        """Send a notice, and note what became of it."""
        made = self._sender.send(notice, self._definitions())
        if made.outcome is not Outcome.FAILED:
            self._outbox.note_sent(notice)
            return made
        again = None
        if notice.attempts + 1 < TRIES and made.trouble != "no-address":
            wait = min(FIRST_WAIT * 2**notice.attempts, LONGEST_WAIT)
            again = self._clock() + (0.5 + self._draw() / 2) * wait
        self._outbox.note_failure(notice, self._name, again, made.trouble)
        return made


def _outcome(answer: int | Dispatched) -> Dispatched:
    return answer if isinstance(answer, Dispatched) else SENT
