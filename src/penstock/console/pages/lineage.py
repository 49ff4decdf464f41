"""Lineage: where data go, from streams through views to those who may read them, as a graph.

    stream ─▶ view ─▶ role ─▶ user          at Kafka: views and permissions name roles
       └────▶ role, group, user ─▶ user     at the gateway: policies that let somebody read

Rules that hold here:
- What is drawn is what definitions declare; purposes, conditions and emergencies narrow or widen
  it message by message, which the access matrix tells.
- Each column has an end: what is left out is counted, and found by searching.
- A search keeps what leads to its hits, and what they lead to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Final, NamedTuple
from urllib.parse import quote as encode

from fastapi import Query
from markupsafe import Markup

from penstock.console.desk import Visit, Visitor
from penstock.console.rooms import PageData, Room
from penstock.definitions import DefinitionSet
from penstock.definitions.access import make_directory
from penstock.definitions.access_matrix import list_subjects
from penstock.kafka.acls import WantedAccess
from penstock.model import kinds
from penstock.model.kinds.fields import plain_filter
from penstock.model.role_terms import parse_subject
from penstock.model.topics import overlaps
from penstock.policy.access.principals import ANONYMOUS

ROOM: Final = Room(
    "lineage",
    "Lineage",
    order=25,
    help="how-to/see-who-sees-what",
    icon="M4 5h5v4H4zM4 15h5v4H4zM15 10h5v4h-5zM9 7h3v10H9M12 12h3",
    about="Streams, their views, and who may read them.",
)
COLUMNS: Final = ("Streams", "Views", "Roles and groups", "Users")
MOST: Final = 60
_WIDTH: Final = 186
_STEP: Final = 256
_HEIGHT: Final = 40
_GAP: Final = 12
_TOP: Final = 34
_LETTERS: Final = 22
_LANE: Final = 8


class Node(PageData):
    """A stream, a view, a role, a group or a user."""

    key: str
    kind: str
    name: str
    about: str
    column: int
    to: str
    hit: bool
    """Whether the search is for it."""


class Edge(PageData):
    """Something goes from one to another."""

    source: str
    target: str
    by: str
    """The definitions that let it."""


class Lineage(PageData):
    """The graph, or the part of it that a search is about."""

    asked: str
    nodes: Sequence[Node]
    edges: Sequence[Edge]
    left: Sequence[int]
    """How many of each column are left out."""

    def graph(self) -> Markup:
        """Return the graph as SVG."""
        return draw(self.nodes, self.edges)


class _Graph:
    """What leads where."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[str, str, str, int]] = {}
        self.edges: dict[tuple[str, str], dict[str, None]] = {}

    def add(self, kind: str, name: str, column: int, about: str = "") -> str:
        key = f"{kind}:{name}"
        held = self.nodes.get(key)
        if held is None or (about and not held[2]):
            self.nodes[key] = (kind, name, about, column)
        return key

    def lead(self, source: str, target: str, by: str) -> None:
        self.edges.setdefault((source, target), {})[by] = None

    def around(self, keys: Iterable[str]) -> set[str]:
        """Return these nodes with all that lead to them, and all that they lead to."""
        start, found = set(keys), set(keys)
        for one, other in ((0, 1), (1, 0)):
            ways: dict[str, list[str]] = {}
            for edge in self.edges:
                ways.setdefault(edge[one], []).append(edge[other])
            waiting, seen = list(start), set(start)
            while waiting:
                for it in ways.get(waiting.pop(), ()):
                    if it not in seen:
                        seen.add(it)
                        waiting.append(it)
            found |= seen
        return found


@ROOM.page("/lineage", "Lineage", "lineage/graph.html")
def show_lineage(visit: Visitor, q: Annotated[str, Query(max_length=200)] = "") -> Lineage:
    """Show which views streams have, and who may read streams and views."""
    graph = build(visit.definitions)
    wanted = q.strip().casefold()
    hits = {
        key for key, (_, name, _, _) in graph.nodes.items() if wanted and wanted in name.casefold()
    }
    shown = graph.around(hits) if wanted else set(graph.nodes)
    columns = _arrange(graph, shown, hits)
    kept = {key for column in columns for key in column[:MOST]}
    return Lineage(
        asked=q,
        nodes=[
            _tell(visit, key, graph.nodes[key], hit=key in hits)
            for column in columns
            for key in column[:MOST]
        ],
        edges=[
            Edge(source=source, target=target, by=", ".join(by))
            for (source, target), by in graph.edges.items()
            if source in kept and target in kept
        ],
        left=[max(0, len(column) - MOST) for column in columns],
    )


def build(definitions: DefinitionSet) -> _Graph:
    """Return all that definitions let flow."""
    graph = _Graph()
    streams = definitions.of(kinds.Stream)
    for name, stream in sorted(streams.items()):
        graph.add("stream", name, 0, ", ".join(stream.patterns))
    access = WantedAccess(definitions)
    for name, view in sorted(definitions.of(kinds.View).items()):
        source = graph.add("stream", view.stream, 0)
        target = graph.add("view", name, 1, view.format)
        graph.lead(source, target, f"view {name}")
        for role in access.giving(view.topic, "read"):
            graph.lead(target, graph.add("role", role, 2, "at Kafka"), f"view {name}, role {role}")
    for name, stream in streams.items():
        for role in access.giving(stream.topic, "read"):
            reader = graph.add("role", role, 2, "at Kafka")
            graph.lead(f"stream:{name}", reader, f"role {role}")
    for rule, subject, stream_name in _list_readers(definitions):
        kind, _, who = subject.partition(":")
        about = "by policies"
        if kind in {"role", "group"}:
            term = parse_subject(subject) if kind == "role" else None
            target = graph.add(kind, term.name if term is not None else who, 2, about)
        elif kind in {"user", "client"}:
            target = graph.add(kind, who, 3, about)
        else:
            target = graph.add("anyone", "anyone", 2, about)
        graph.lead(f"stream:{stream_name}", target, rule)
    _add_people(definitions, graph, access)
    return graph


def _list_readers(definitions: DefinitionSet) -> Iterator[tuple[str, str, str]]:
    """Yield who may read messages of which stream at the gateway: rule, subject, stream."""
    found: list[tuple[str, str, Sequence[str]]] = [
        (f"policy {name}", it.subject, [it.filter])
        for name, it in definitions.of(kinds.Policy).items()
        if it.allow == "read"
    ]
    found += [
        (f"emergency-policy {name}", it.subject, [it.filter])
        for name, it in definitions.of(kinds.EmergencyPolicy).items()
        if it.allow == "read"
    ]
    found += [
        (f"authorisation-rule {name}", it.subject, it.subscribe)
        for name, it in definitions.of(kinds.AuthorisationRule).items()
    ]
    for name, stream in definitions.of(kinds.Stream).items():
        patterns = [plain_filter(it) for it in stream.patterns]
        for rule, subject, filters in found:
            if any(overlaps(one, other) for one in patterns for other in filters):
                yield rule, subject, name


def _add_people(definitions: DefinitionSet, graph: _Graph, access: WantedAccess) -> None:
    """Add who has the roles, and who is in the groups that read something."""
    directory = make_directory(definitions)
    for name in list_subjects(definitions):
        known = definitions.get(kinds.User, name)
        if name == ANONYMOUS or (known is not None and known.blocked):
            continue
        who = directory.resolve(name, None)
        roles = access.graph.closure((*who.roles.names(), *(known.roles if known else ())))
        held = [("role", it) for it in sorted(roles)] + [("group", it) for it in sorted(who.groups)]
        for kind, it in held:
            if f"{kind}:{it}" in graph.nodes:
                graph.lead(f"{kind}:{it}", graph.add("user", name, 3), f"{kind} {it}")


def _arrange(graph: _Graph, shown: set[str], hits: set[str]) -> list[list[str]]:
    """Return the nodes of each column, near to what leads to them."""
    columns: list[list[str]] = []
    sources: dict[str, list[str]] = {}
    for one, other in graph.edges:
        sources.setdefault(other, []).append(one)
    place: dict[str, int] = {}
    for number in range(len(COLUMNS)):
        weights: dict[str, tuple[bool, float, str]] = {}
        for key in shown:
            if graph.nodes[key][3] == number:
                known = [place[it] for it in sources.get(key, ()) if it in place]
                mean = sum(known) / len(known) if known else float("inf")
                weights[key] = (key not in hits, mean, key)
        column = sorted(weights, key=weights.__getitem__)
        place |= {key: at for at, key in enumerate(column)}
        columns.append(column)
    return columns


def _tell(visit: Visit, key: str, node: tuple[str, str, str, int], *, hit: bool) -> Node:
    kind, name, about, column = node
    named = encode(name, safe="")
    to = ""
    if kind == "stream" and visit.sees("views"):
        to = f"/views/stream?name={named}"
    elif kind == "view" and visit.sees("views"):
        to = f"/views/one?name={named}"
    elif kind in {"role", "user"} and visit.sees("access"):
        to = f"/access/{kind}?name={named}"
    return Node(key=key, kind=kind, name=name, about=about, column=column, to=to, hit=hit)


class _Box(NamedTuple):
    x: float
    y: float


def draw(nodes: Sequence[Node], edges: Sequence[Edge]) -> Markup:
    """Return nodes in their columns, and edges between them."""
    rows = [0] * len(COLUMNS)
    boxes: dict[str, _Box] = {}
    for it in nodes:
        boxes[it.key] = _Box(it.column * _STEP + 1, _TOP + rows[it.column] * (_HEIGHT + _GAP))
        rows[it.column] += 1
    bottom = _TOP + max(1, *rows) * (_HEIGHT + _GAP)
    lanes: dict[str, float] = {}
    drawn = [_draw_edge(it, boxes, bottom, lanes) for it in edges]
    width = _STEP * (len(COLUMNS) - 1) + _WIDTH + 2
    height = bottom + _LANE * (len(lanes) + 1)
    parts = [
        Markup('<text class="column" x="{}" y="16">{}</text>').format(number * _STEP + 1, title)
        for number, title in enumerate(COLUMNS)
    ]
    parts += drawn
    parts += [_draw_node(it, boxes[it.key]) for it in nodes]
    return Markup(
        '<svg class="lineage" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="group" '
        'aria-label="Lineage">{2}</svg>'
    ).format(width, height, Markup("").join(parts))


def _draw_edge(
    edge: Edge, boxes: Mapping[str, _Box], bottom: float, lanes: dict[str, float]
) -> Markup:
    """Draw an edge; one that skips a column runs in a lane below all boxes, one for each source."""
    one, other = boxes[edge.source], boxes[edge.target]
    x1, y1 = one.x + _WIDTH, one.y + _HEIGHT / 2
    x2, y2 = other.x, other.y + _HEIGHT / 2
    middle = (x1 + x2) / 2
    way = f"C{middle:.0f} {y1:.0f} {middle:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"
    if x2 - x1 > _STEP:
        lane = lanes.setdefault(edge.source, bottom + _LANE * len(lanes))
        bend = (_STEP - _WIDTH) / 2
        down, up = x1 + bend, x2 - bend
        way = (
            f"C{down:.0f} {y1:.0f} {x1:.0f} {lane:.0f} {x1 + 2 * bend:.0f} {lane:.0f}"
            f"H{x2 - 2 * bend:.0f}"
            f"C{x2:.0f} {lane:.0f} {up:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"
        )
    return Markup('<path class="edge" d="M{:.0f} {:.0f}{}"><title>{}</title></path>').format(
        x1, y1, way, edge.by
    )


def _draw_node(it: Node, box: _Box) -> Markup:
    drawn = Markup(
        "<title>{}</title>"
        '<rect class="box" x="{:.0f}" y="{:.0f}" width="{}" height="{}" rx="8"/>'
        '<text class="name" x="{:.0f}" y="{:.0f}">{}</text>'
        '<text class="about" x="{:.0f}" y="{:.0f}">{}</text>'
    ).format(
        f"{it.kind} {it.name}" + (f": {it.about}" if it.about else ""),
        box.x,
        box.y,
        _WIDTH,
        _HEIGHT,
        box.x + 12,
        box.y + 17,
        _shorten(it.name, _LETTERS),
        box.x + 12,
        box.y + 32,
        _shorten(f"{it.kind} · {it.about}" if it.about else it.kind, _LETTERS + 7),
    )
    classes = f"node node-{it.kind}" + (" node-hit" if it.hit else "")
    if it.to:
        return Markup('<a class="{}" href="{}">{}</a>').format(classes, it.to, drawn)
    return Markup('<g class="{}">{}</g>').format(classes, drawn)


def _shorten(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"
