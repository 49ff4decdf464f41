"""A mail server as a process of its own: keeps what it gets as lines of JSON in a file.

    mail_server.py PORT FILE [CERTIFICATE KEY [USER PASSWORD]]

With a certificate it takes nothing before STARTTLS; with a user, nothing before the login.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.policy import SMTP
from pathlib import Path
from typing import Any

from penstock.components import processes


class Mailbox:
    """What the server got."""

    def __init__(self, port: int, file: Path) -> None:
        self.port = port
        self._file = file

    def mails(self) -> list[dict[str, Any]]:
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [json.loads(line) for line in lines]


@contextmanager
def serving_mail(folder: Path, *options: str) -> Iterator[Mailbox]:
    """Run a mail server for as long as the block lasts."""
    port, file = processes.free_port(), folder / "mails"
    command = [sys.executable, __file__, str(port), str(file), *options]
    with (folder / "mail.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            latest = time.monotonic() + 30
            while not processes.accepts(port):
                assert server.poll() is None, (folder / "mail.log").read_text()
                assert time.monotonic() < latest
                time.sleep(0.02)
            yield Mailbox(port, file)
        finally:
            server.terminate()
            server.wait(10)


def main(port: str, file: str, *options: str) -> None:
    """Serve until terminated."""
    from aiosmtpd.controller import Controller  # noqa: PLC0415 - in the process of its own only
    from aiosmtpd.smtp import AuthResult, LoginPassword  # noqa: PLC0415

    def append(line: str) -> None:
        with Path(file).open("a") as out:
            out.write(line)

    class Handler:
        async def handle_DATA(self, _s: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
            mail = message_from_bytes(envelope.content, policy=SMTP)
            found = {
                "recipients": envelope.rcpt_tos, "from": envelope.mail_from,
                "headers": [[name, str(value)] for name, value in mail.items()],
                "text": mail.get_content(),
            }  # fmt: skip
            append(json.dumps(found) + "\n")
            return "250 OK"

    settings: dict[str, Any] = {}
    if options:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(options[0], options[1])
        settings |= {"tls_context": context, "require_starttls": True}
    if options[2:]:
        user, password = options[2].encode(), options[3].encode()

        def check(_s: Any, _session: Any, _e: Any, _m: str, data: Any) -> AuthResult:
            fits = isinstance(data, LoginPassword) and (data.login, data.password) == (
                user,
                password,
            )
            return AuthResult(success=fits, handled=fits)

        settings |= {"auth_required": True, "authenticator": check}
    controller = Controller(Handler(), hostname="127.0.0.1", port=int(port), **settings)
    controller.start()
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
