"""`store`: the database that every process of an installation shares."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

from pydantic import AfterValidator, Field, ValidationInfo

from penstock.config.quantities import Duration
from penstock.config.secrets import Secret
from penstock.config.settings import Kind, Settings, folders_of, setting, wrong

SCHEMES = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}


def _check_url(url: str, info: ValidationInfo) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise wrong("this is not a URL", _FORMS) from None
    # From here on nothing of the URL is quoted: a password may stand in it.
    if parts.password is not None or {"password", "sslpassword"} & parse_qs(parts.query).keys():
        raise wrong(
            "a password must not stand in the URL",
            "leave it out, and set store.password to {file: PATH} or {env: NAME}",
        )
    if parts.scheme not in SCHEMES:
        raise wrong("the URL names a database that Penstock does not know", _FORMS)
    if parts.scheme != "sqlite":
        if not parts.path.strip("/"):
            raise wrong("the URL names no database", _FORMS)
        return f"{SCHEMES[parts.scheme]}://{url.partition('://')[2]}"
    if (
        parts.netloc
        or parts.query
        or parts.fragment
        or parts.path in {"", "/"}
        or ":memory:" in parts.path
    ):
        raise wrong("the URL does not name a file", _FORMS)
    # `sqlite:///a.db` is relative, `sqlite:////a.db` is absolute.
    path = folders_of(info)["data"] / parts.path[1:]
    if {"?", "#"} & set(str(path)):
        raise wrong("the path of the file has a character that ends a URL", "rename its folder")
    return f"sqlite:///{path}"


_FORMS = "write sqlite:///FILE or postgresql://USER@HOST/DATABASE"

StoreUrl = Annotated[str, AfterValidator(_check_url), Kind("a URL")]


class StoreSettings(Settings):
    """Where definitions, their history and the audit log are kept."""

    url: StoreUrl = setting(
        "sqlite:///penstock.db",
        "The database: sqlite:///FILE, or postgresql://USER@HOST/DATABASE "
        "when there is more than one host.",
    )
    password: Secret | None = setting(
        None,
        "The password of the database user.",
        examples=(
            "{file: keys/store-password}",
            "{env: STORE_PASSWORD}",
        ),
    )
    lease: Annotated[Duration, Field(ge=0.1, le=3600)] = setting(
        "5s",
        "How long an enforcement point may go without hearing from the store "
        "before it denies everything.",
    )

    def connection_url(self) -> str:
        """Return the URL with the password put in; it must never be logged."""
        if self.password is None:
            return self.url
        parts = urlsplit(self.url)
        user, _, host = parts.netloc.rpartition("@")
        secret = quote(self.password.read_text(), safe="")
        return urlunsplit(parts._replace(netloc=f"{user}:{secret}@{host}"))
