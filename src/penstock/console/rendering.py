"""How data become pages: the templates, what they may use, and the documentation.

Rules that hold here:
- Everything that is put into a template is escaped; what is not there is an error, not nothing.
- A time is written so that the browser shows it in the zone of who looks (`<time>`).
- Static files have their hash in the address, so that browsers keep them for good.
- Documentation is Markdown of our own; HTML in it is shown as text all the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from penstock import __version__
from penstock.console.desk import Visit
from penstock.console.rooms import Again, Page, Room

_TYPES: Final[Mapping[str, str]] = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_THOUSAND: Final = 1000
_MICRO: Final = 1e6
UNKNOWN: Final = "\N{EN DASH}"
TOUR: Final = "penstock-tour"
THEME: Final = "penstock-theme"


class Asset(NamedTuple):
    """One static file."""

    content: bytes
    media_type: str
    mark: str


@cache
def load_assets() -> Mapping[str, Asset]:
    """Return the static files by their names."""
    found = {}
    for it in files("penstock.console").joinpath("static").iterdir():
        kind = it.name.rpartition(".")[2]
        if kind in _TYPES:
            content = it.read_bytes()
            mark = sha256(content).hexdigest()[:16]
            found[it.name] = Asset(content, _TYPES[kind], mark)
    return found


def asset_path(name: str) -> str:
    """Return the address of a static file."""
    return f"/static/{load_assets()[name].mark}/{name}"


def show_time(value: datetime | float | str | None, shape: str = "long") -> Markup:
    """Return a moment as the browser shows it in its zone; `shape` is long, short or ago."""
    if value is None or value == "":
        return Markup("{}").format(UNKNOWN)
    if isinstance(value, str):
        moment = datetime.fromisoformat(value)
    elif isinstance(value, datetime):
        moment = value
    else:
        moment = datetime.fromtimestamp(value, UTC)
    moment = moment.astimezone(UTC)
    iso = moment.isoformat(timespec="seconds").replace("+00:00", "Z")
    shown = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" data-shape="{}">{}</time>').format(iso, shape, shown)


def show_number(value: float | None, digits: int = 1) -> str:
    """Return a figure for people: thousands apart, few digits; unknown is a dash."""
    if value is None:
        return UNKNOWN
    if float(value).is_integer() or abs(value) >= _THOUSAND:
        return f"{value:,.0f}".replace(",", "\u202f")
    return f"{value:.{digits}f}"


def show_seconds(value: float | None) -> str:
    """Return a length of time in its largest unit."""
    if value is None:
        return UNKNOWN
    for unit, worth in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if abs(value) >= worth:
            return f"{value / worth:.1f}".removesuffix(".0") + f"\u202f{unit}"
    return f"{value * 1000:.0f}\u202fms"


def show_json(value: Any) -> str:
    """Return data as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


class Renderer:
    """Makes pages of templates."""

    def __init__(self, rooms: Sequence[Room], *, openid: bool = False) -> None:
        self._rooms = sorted(rooms, key=lambda it: it.order)
        self._openid = openid
        self._environment = Environment(
            loader=PackageLoader("penstock.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals.update(asset=asset_path, version=__version__, count=count)
        self._environment.filters.update(
            time=show_time, number=show_number, seconds=show_seconds, json=show_json
        )

    def page(
        self, request: Request, visit: Visit, room: Room, page: Page, data: Any
    ) -> HTMLResponse:
        """Return a page of a room."""
        return self._whole(request, visit, page.template, page.title, data, room, page)

    def again(self, request: Request, visit: Visit, room: Room, shown: Again) -> HTMLResponse:
        """Return a form that was sent, with what is wrong."""
        made = self._whole(request, visit, shown.template, shown.title, shown.data, room, None)
        made.status_code = shown.status
        return made

    def fragment(self, visit: Visit, template: str, data: Any) -> str:
        """Return the part of a page that changes by itself."""
        return self._environment.get_template(template).render(data=data, visit=visit)

    def plain(
        self, request: Request, template: str, title: str, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Return a page for whoever is not signed in, or an error."""
        visit: Visit | None = values.pop("visit", None)
        shown = self._environment.get_template(template).render(
            title=title,
            visit=visit,
            openid=self._openid,
            **self._frame(request, visit, None),
            **values,
        )
        return HTMLResponse(shown, status)

    def _whole(
        self,
        request: Request,
        visit: Visit,
        template: str,
        title: str,
        data: Any,
        room: Room,
        page: Page | None,
    ) -> HTMLResponse:
        notice = visit.desk.take_notice(visit) if page is not None else ""
        query = f"?{request.url.query}" if request.url.query else ""
        return HTMLResponse(
            self._environment.get_template(template).render(
                data=data,
                visit=visit,
                title=title,
                room=room,
                page=page,
                notice=notice,
                twin=f"{page.path}.json{query}" if page is not None else "",
                stream=f"{page.path}.live{query}" if page is not None and page.live else "",
                help_page=page.help if page is not None else room.help,
                **self._frame(request, visit, room),
            )
        )

    def _frame(self, request: Request, visit: Visit | None, room: Room | None) -> dict[str, Any]:
        shown = [it for it in self._rooms if visit is not None and visit.sees(it.sees)]
        theme = request.cookies.get(THEME, "")
        return {
            "rooms": shown,
            "here": room.name if room is not None else "",
            "theme": theme if theme in {"light", "dark"} else "",
            "tour": visit is not None and TOUR not in request.cookies,
        }


_LINK: Final = re.compile(r"(?:\.\./)*([A-Za-z0-9_/.-]+?)\.md(#[A-Za-z0-9_-]+)?")


def docs_folder() -> Traversable:
    """Return the folder of the documentation."""
    return files("penstock.console").joinpath("docs")


@cache
def list_docs() -> Mapping[str, str]:
    """Return the pages of the documentation: their titles by their names."""
    found: dict[str, str] = {}

    def walk(folder: Traversable, above: str) -> None:
        for it in sorted(folder.iterdir(), key=lambda entry: entry.name):
            if it.is_dir():
                walk(it, f"{above}{it.name}/")
            elif it.name.endswith(".md"):
                first = it.read_text("utf-8").partition("\n")[0]
                found[f"{above}{it.name.removesuffix('.md')}"] = first.lstrip("# ").strip()

    walk(docs_folder(), "")
    return found


@cache
def render_doc(name: str) -> Markup | None:
    """Return a page of the documentation as HTML; None where there is none."""
    if name not in list_docs():
        return None
    text = docs_folder().joinpath(*f"{name}.md".split("/")).read_text("utf-8")
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False}).enable("table")
    here = name.rpartition("/")[0]
    # The first heading is the title, which the page has already.
    tokens = parser.parse(text.partition("\n")[2])
    for token in tokens:
        for child in token.children or ():
            if child.type == "link_open":
                child.attrSet("href", _lead_on(str(child.attrGet("href") or ""), here))
        if token.type == "heading_open":
            following = tokens[tokens.index(token) + 1].content
            token.attrSet("id", slug(following))
    # Markdown of ours; the parser has escaped all else.
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704


def slug(heading: str) -> str:
    """Return the anchor of a heading, as its links name it."""
    kept = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
    return kept.replace(" ", "-")


def _lead_on(href: str, here: str) -> str:
    """Return where a link of the documentation leads within the console."""
    if href.startswith("#"):
        return href
    path, _, anchor = href.partition("#")
    if not path.endswith(".md") or "://" in path:
        return href if href.startswith("https://") else "/help"
    parts = here.split("/") if here else []
    for step in path.removesuffix(".md").split("/"):
        if step == "..":
            parts = parts[:-1]
        elif step not in {"", "."}:
            parts.append(step)
    name = "/".join(parts)
    if name not in list_docs():
        return "/help"
    return f"/help?page={name}" + (f"#{anchor}" if anchor else "")
