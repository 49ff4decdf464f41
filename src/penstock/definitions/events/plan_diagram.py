"""Plans drawn as state diagrams: one SVG text, readable on light and dark paper.

             ┌────── Symptom ──────┐            escalations: lanes above
             │                     ▼
    ⊥   Possible   Suspected   Symptomatic      boxes by level, inactive first
    ▲                  │
    └──── Negative ────┘                        recoveries: lanes below

Rules that hold here:
- Boxes stand by level, then as the plan names them. What leads to the right runs above, what
  leads back below: no arrow passes behind a box.
- An arrow has a lane to itself as far as it and its label reach; the shorter lies nearer to
  the boxes. Ports of a box are in such an order that lanes which could nest do not cross.
- A label stands where no other arrow passes through it, if there is such a place.
- The text needs nothing from elsewhere: no fonts, no scripts, no links. All names are
  escaped.
- A diagram never contains more than the plan and, where asked for, how many subjects are in
  each situation. Subjects are not named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from penstock.model.kinds.events import Evolution, Plan

NAME_WIDTH: Final = 8.4
LABEL_WIDTH: Final = 7.6
SMALL_WIDTH: Final = 6.0
BOX_HEIGHT: Final = 58.0
LEAST_WIDTH: Final = 128.0
PADDING: Final = 22.0
PORT: Final = 20.0
GAP: Final = 60.0
MARGIN: Final = 28.0
LANE: Final = 40.0
FIRST_LANE: Final = 34.0
CLEARANCE: Final = 9.0
HEADER: Final = 58.0


@dataclass(slots=True)
class Box:
    """A situation, or inactive (None)."""

    situation: str | None
    level: int
    description: str = ""
    x: float = 0.0
    y: float = 0.0
    width: float = LEAST_WIDTH


@dataclass(slots=True)
class Arrow:
    """An evolution."""

    evolution: Evolution
    source: int
    target: int
    start: float = 0.0
    end: float = 0.0
    lane: int = 0
    y: float = 0.0
    label: float = 0.0
    note: float = 0.0
    """Where the middles of the event's name and of the actions are."""

    @property
    def rises(self) -> bool:
        """Whether it runs above the boxes."""
        return self.target >= self.source

    @property
    def length(self) -> int:
        """How many boxes it leads on."""
        return abs(self.target - self.source)

    @property
    def actions(self) -> str:
        """What is written below the lane."""
        return ", ".join(self.evolution.actions)

    @property
    def label_width(self) -> float:
        """How wide its texts are."""
        return max(len(self.evolution.cause) * LABEL_WIDTH, len(self.actions) * SMALL_WIDTH)

    def reach(self) -> tuple[float, float]:
        """Return from where to where it needs its lane."""
        low, high = min(self.start, self.end), max(self.start, self.end)
        low = min(low, self.label - self.label_width / 2)
        high = max(high, self.label + self.label_width / 2)
        return low - CLEARANCE, high + CLEARANCE


@dataclass(slots=True)
class PlanLayout:
    """A diagram, before it is drawn."""

    boxes: list[Box]
    arrows: list[Arrow]
    width: float = 0.0
    height: float = 0.0


def lay_out(plan: Plan) -> PlanLayout:
    """Place everything."""
    ordered = sorted(plan.situations, key=lambda it: it.level)
    boxes = [Box(None, 0), *(Box(it.id, it.level, it.description) for it in ordered)]
    places = {box.situation: number for number, box in enumerate(boxes)}
    arrows = [Arrow(it, places[it.source], places[it.target]) for it in plan.evolutions]
    layout = PlanLayout(boxes, arrows)
    _place_boxes(layout)
    _place_ports(layout)
    _make_room(layout)
    for above in (True, False):
        _assign_lanes([it for it in arrows if it.rises is above])
    _place_rows(layout, _words(plan.name), _words(plan.description))
    for above in (True, False):
        side = [it for it in arrows if it.rises is above]
        for arrow in side:
            _place_label(arrow, side)
    return layout


def _words(text: str) -> float:
    return len(text) * LABEL_WIDTH


def _ports(layout: PlanLayout, number: int, *, above: bool) -> list[tuple[Arrow, bool]]:
    """Return the arrows at one side of a box in order, and whether each leaves there."""
    left: list[tuple[Arrow, bool]] = []
    right: list[tuple[Arrow, bool]] = []
    for arrow in layout.arrows:
        if arrow.rises is not above:
            continue
        for leaves, own, other in (
            (True, arrow.source, arrow.target),
            (False, arrow.target, arrow.source),
        ):
            if own == number:
                # A loop leaves on the left and comes back on the right.
                goes_left = other < number or (other == number and leaves)
                (left if goes_left else right).append((arrow, leaves))
    # From the left the nearest comes first; to the right the farthest goes first.
    left.sort(key=lambda it: it[0].length)
    right.sort(key=lambda it: -it[0].length)
    return left + right


def _place_boxes(layout: PlanLayout) -> None:
    x = MARGIN
    for number, box in enumerate(layout.boxes):
        ports = max(len(_ports(layout, number, above=it)) for it in (True, False))
        name = len(box.situation or "inactive") * NAME_WIDTH + 2 * PADDING
        box.width = max(LEAST_WIDTH, name, (ports + 1) * PORT)
        box.x = x
        x += box.width + GAP
    layout.width = x - GAP + MARGIN


def _place_ports(layout: PlanLayout) -> None:
    for number, box in enumerate(layout.boxes):
        for above in (True, False):
            ports = _ports(layout, number, above=above)
            for place, (arrow, leaves) in enumerate(ports, 1):
                x = box.x + box.width * place / (len(ports) + 1)
                if leaves:
                    arrow.start = x
                else:
                    arrow.end = x
    for arrow in layout.arrows:
        arrow.label = (arrow.start + arrow.end) / 2


def _make_room(layout: PlanLayout) -> None:
    """Move boxes apart until the labels between neighbours fit."""
    for number in range(1, len(layout.boxes)):
        wanted = max(
            (
                it.label_width + 2 * CLEARANCE - abs(it.end - it.start)
                for it in layout.arrows
                if {it.source, it.target} == {number - 1, number}
            ),
            default=0.0,
        )
        if wanted > 0:
            for box in layout.boxes[number:]:
                box.x += wanted
            layout.width += wanted
            _place_ports(layout)


def _assign_lanes(arrows: Iterable[Arrow]) -> None:
    lanes: list[list[tuple[float, float]]] = []
    for arrow in sorted(arrows, key=lambda it: (it.length, abs(it.end - it.start), it.start)):
        low, high = arrow.reach()
        for number, taken in enumerate(lanes):
            if all(high <= begin or end <= low for begin, end in taken):
                arrow.lane = number
                taken.append((low, high))
                break
        else:
            arrow.lane = len(lanes)
            lanes.append([(low, high)])


def _place_rows(layout: PlanLayout, *texts: float) -> None:
    above = [it.lane + 1 for it in layout.arrows if it.rises]
    below = [it.lane + 1 for it in layout.arrows if not it.rises]
    top = HEADER + (FIRST_LANE + max(above) * LANE if above else MARGIN)
    for box in layout.boxes:
        box.y = top
    bottom = top + BOX_HEIGHT
    for arrow in layout.arrows:
        away = FIRST_LANE + arrow.lane * LANE
        arrow.y = top - away if arrow.rises else bottom + away
    layout.height = bottom + (FIRST_LANE + max(below) * LANE if below else MARGIN)
    reaches = [arrow.reach() for arrow in layout.arrows]
    # A label may reach beyond the boxes.
    shift = max(0.0, MARGIN - min(low for low, _ in reaches))
    for box in layout.boxes:
        box.x += shift
    for arrow in layout.arrows:
        arrow.start += shift
        arrow.end += shift
        arrow.label += shift
    right = max(high for _, high in reaches)
    layout.width = max(layout.width, right + MARGIN, *(it + 2 * MARGIN for it in texts)) + shift


def _place_label(arrow: Arrow, side: list[Arrow]) -> None:
    """Move the texts along their lane to where no arrow of a farther lane passes.

    Where both do not fit, the event's name goes first: it tells the arrows apart.
    """
    low, high = min(arrow.start, arrow.end), max(arrow.start, arrow.end)
    passing = [x for it in side if it.lane > arrow.lane for x in (it.start, it.end)]
    middle = (low + high) / 2
    arrow.label = arrow.note = middle
    name = len(arrow.evolution.cause) * LABEL_WIDTH
    for width in (arrow.label_width, name):
        half = width / 2 + 3
        room = int(max(0.0, (high - low) / 2 - half))
        for offset in (it * sign for it in range(0, room + 1, 4) for sign in (1, -1)):
            place = middle + offset
            if not any(place - half < x < place + half for x in passing):
                arrow.label = place
                arrow.note = place if width == arrow.label_width else middle
                return


CORNER: Final = 12.0
TIP: Final = 7.0
SHADES: Final = 5
_QUOTED: Final = {'"': "&quot;"}
STYLE: Final = """
  svg { --paper: #ffffff; --ink: #1f2933; --soft: #66727f; --up: #b4541a; --down: #2f7d5b;
        --inactive: #eef1f4; --edge: #b8c1cb;
        --shade-1: #fdf3d3; --shade-2: #fbe3b6; --shade-3: #f9cf9f; --shade-4: #f5b48e;
        --shade-5: #ee957f; --mark: #b3261e; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #14191f; --ink: #e8edf2; --soft: #97a3b0; --up: #f0a36b; --down: #6fcf9f;
          --inactive: #232b34; --edge: #465362;
          --shade-1: #3a3420; --shade-2: #47381f; --shade-3: #543722; --shade-4: #613326;
          --shade-5: #702d2b; --mark: #ff8a80; } }
  text { font-family: system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif;
         fill: var(--ink); }
  .title { font-size: 18px; font-weight: 600; }
  .soft { font-size: 12px; fill: var(--soft); }
  .name { font-size: 14px; font-weight: 600; text-anchor: middle; }
  .level { font-size: 11px; fill: var(--soft); text-anchor: middle; }
  .label, .actions { text-anchor: middle; paint-order: stroke; stroke: var(--paper);
                     stroke-width: 5px; stroke-linejoin: round; }
  .label { font-size: 12.5px; }
  .actions { font-size: 10px; fill: var(--soft); }
  .arrow { fill: none; stroke-width: 1.6px; }
  .up .arrow { stroke: var(--up); } .up .tip { fill: var(--up); }
  .down .arrow { stroke: var(--down); } .down .tip { fill: var(--down); }
  .box { stroke: var(--edge); stroke-width: 1.2px; }
  .here .box { stroke: var(--mark); stroke-width: 3px; }
  .here .level { fill: var(--mark); font-weight: 700; }
"""


def draw_part(plan: Plan, occupied: Mapping[str, int]) -> str:
    """Return the diagram for a page that has a style for it (`.plan`), and a title of its own."""
    layout = lay_out(plan)
    top, bottom = HEADER + CLEARANCE, layout.height - CLEARANCE
    label = f"Plan {plan.name}"
    for it in plan.situations:
        if occupied.get(it.id):
            label += f"; {occupied[it.id]} in {it.id}"
    box = f"0 {top:.0f} {layout.width:.0f} {bottom - top:.0f}"
    opening = (
        f'<svg class="plan" viewBox="{box}" width="{layout.width:.0f}" '
        f'height="{bottom - top:.0f}" role="img" aria-label="{escape(label, _QUOTED)}">'
    )
    return "\n".join([opening, *_draw(layout, occupied), "</svg>"])


def draw_plan(plan: Plan, occupied: Mapping[str, int] | None = None) -> str:
    """Return the diagram of a plan; situations that are `occupied` are marked, with numbers."""
    layout = lay_out(plan)
    about = escape(plan.description) or "How an emergency may develop."
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {layout.width:.0f} '
            f'{layout.height:.0f}" width="{layout.width:.0f}" height="{layout.height:.0f}" '
            'role="img" aria-labelledby="title about">'
        ),
        f'<title id="title">Plan {escape(plan.name)}</title>',
        f'<desc id="about">{about}</desc>',
        f"<style>{STYLE}</style>",
        '<rect width="100%" height="100%" fill="var(--paper)"/>',
        f'<text class="title" x="{MARGIN:.0f}" y="34">{escape(plan.name)}</text>',
        f'<text class="soft" x="{MARGIN:.0f}" y="54">{about}</text>',
    ]
    return "\n".join([*parts, *_draw(layout, occupied or {}), "</svg>", ""])


def _draw(layout: PlanLayout, held: Mapping[str, int]) -> list[str]:
    # Lines first: labels lie on top of all of them.
    return [
        *(_line(arrow, layout) for arrow in layout.arrows),
        *(_box(box, layout, held.get(box.situation or "", 0)) for box in layout.boxes),
        *(_label(arrow) for arrow in layout.arrows),
    ]


def _line(arrow: Arrow, layout: PlanLayout) -> str:
    """Draw an arrow: away from its box, along its lane, to the other box."""
    box = layout.boxes[arrow.source]
    edge = box.y if arrow.rises else box.y + BOX_HEIGHT
    away = -1.0 if arrow.rises else 1.0
    aside = 1.0 if arrow.end >= arrow.start else -1.0
    corner = min(CORNER, abs(arrow.end - arrow.start) / 2)
    near = arrow.y - away * corner
    tip = edge + away * TIP
    path = (
        f"M {arrow.start:.1f} {edge:.1f} V {near:.1f} "
        f"Q {arrow.start:.1f} {arrow.y:.1f} {arrow.start + aside * corner:.1f} {arrow.y:.1f} "
        f"H {arrow.end - aside * corner:.1f} "
        f"Q {arrow.end:.1f} {arrow.y:.1f} {arrow.end:.1f} {near:.1f} V {tip:.1f}"
    )
    head = f"M {arrow.end:.1f} {edge + away * 1.5:.1f} l -4.5 {away * 8.5:.1f} h 9 Z"
    side = "up" if arrow.rises else "down"
    return f'<g class="{side}"><path class="arrow" d="{path}"/><path class="tip" d="{head}"/></g>'


def _label(arrow: Arrow) -> str:
    it = arrow.evolution
    told = f"{it.cause}: {it.source or 'inactive'} → {it.target or 'inactive'}"
    if it.actions:
        told += f"; publishes {arrow.actions}"
    lines = [
        f"<g><title>{escape(told)}</title>",
        (
            f'<text class="label" x="{arrow.label:.1f}" y="{arrow.y - 6:.1f}">'
            f"{escape(it.cause)}</text>"
        ),
    ]
    if it.actions:
        lines.append(
            f'<text class="actions" x="{arrow.note:.1f}" y="{arrow.y + 13:.1f}">'
            f"{escape(arrow.actions)}</text>"
        )
    return "".join([*lines, "</g>"])


def _box(box: Box, layout: PlanLayout, count: int) -> str:
    levels = sorted({it.level for it in layout.boxes[1:]})
    middle = box.x + box.width / 2
    if box.situation is None:
        fill, name, below = "var(--inactive)", "⊥", "inactive"
    else:
        rank = levels.index(box.level)
        shade = 1 + round(rank * (SHADES - 1) / max(1, len(levels) - 1))
        fill, name, below = f"var(--shade-{shade})", escape(box.situation), f"level {box.level}"
    if count:
        below = f"{below} · {count:,} here"
    parts = [
        f'<g class="{"here" if count else "free"}">',
        f"<title>{escape(box.description or below)}</title>",
        (
            f'<rect class="box" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
            f'height="{BOX_HEIGHT:.0f}" rx="12" fill="{fill}"/>'
        ),
        f'<text class="name" x="{middle:.1f}" y="{box.y + 27:.1f}">{name}</text>',
        f'<text class="level" x="{middle:.1f}" y="{box.y + 44:.1f}">{below}</text>',
    ]
    return "".join([*parts, "</g>"])
