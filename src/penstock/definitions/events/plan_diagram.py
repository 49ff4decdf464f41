"""Plans drawn as state diagrams: one SVG text, readable on light and dark paper.

Rules that hold here:
- The text needs nothing from elsewhere: no fonts, no scripts, no links.
- All names are escaped; a diagram never contains more than the plan and, where asked for,
  how many subjects are in each situation. Subjects are not named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from xml.sax.saxutils import escape

from penstock.definitions.events.plan_layout import (
    BOX_HEIGHT,
    MARGIN,
    Arrow,
    Box,
    PlanLayout,
    lay_out,
)
from penstock.model.kinds.plans import Plan

CORNER: Final = 12.0
TIP: Final = 7.0
SHADES: Final = 5
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


def draw_plan(plan: Plan, occupied: Mapping[str, int] | None = None) -> str:
    """Return the diagram of a plan; situations that are `occupied` are marked, with numbers."""
    layout = lay_out(plan)
    held = occupied or {}
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
    # Lines first: labels lie on top of all of them.
    parts += [_line(arrow, layout) for arrow in layout.arrows]
    parts += [_box(box, layout, held.get(box.situation or "", 0)) for box in layout.boxes]
    parts += [_label(arrow) for arrow in layout.arrows]
    return "\n".join([*parts, "</svg>", ""])


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
    told = f"{it.event}: {it.source or 'inactive'} → {it.target or 'inactive'}"
    if it.actions:
        told += f"; publishes {arrow.actions}"
    lines = [
        f"<g><title>{escape(told)}</title>",
        (
            f'<text class="label" x="{arrow.label:.1f}" y="{arrow.y - 6:.1f}">'
            f"{escape(it.event)}</text>"
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
