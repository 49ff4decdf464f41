"""Sends e-mails through the mail server of the settings.

Rules that hold here:
- No text gets into a header but those made here, and a header has no line ends: addresses are of
  the plain form, and the library refuses the rest.
- With starttls or tls nothing is said before the connection is encrypted and the server's
  certificate checked; what fails that fails the e-mail.
- Every wait is bounded, and a failure is a short code that names nobody.
"""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from typing import Final

from penstock.config.sections.rights import EmailSettings
from penstock.errors import UnavailableError
from penstock.model.kinds.controls import is_email
from penstock.rights.dispatch.message import NOT_CONFIGURED, SENT, Dispatched, failed, find_trouble

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
