"""`penstock views risk`: the risk of re-identification of a view, measured on what it published."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.output import json_option, show, table
from penstock.cli.session import configuration, open_definitions
from penstock.cli.streams.view_access import note_use
from penstock.errors import UsageError, quote

if TYPE_CHECKING:
    from penstock.risk.figures import Attack, Promise
    from penstock.risk.linkage import Linkage
    from penstock.risk.measurement import Risk

THRESHOLD = 0.2
BAR = 30
# A budget beyond this promises nothing that a number could show.
HOPELESS = 20


@click.command("risk")
@click.argument("name", metavar="VIEW")
@click.option(
    "--quasi-identifier",
    "quasi",
    multiple=True,
    metavar="FIELD",
    help="Take this field as a quasi-identifier, not those that the stream declares; repeatable.",
)
@click.option(
    "--sensitive",
    multiple=True,
    metavar="FIELD",
    help="Take this field as sensitive, not those that the stream declares; repeatable.",
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=THRESHOLD,
    show_default=True,
    help="Count the records whose risk is above this.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Plot the figures, as FILE.png or FILE.svg.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    name: str,
    quasi: tuple[str, ...],
    sensitive: tuple[str, ...],
    threshold: float,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure the risk of re-identification in what VIEW has published.

    Shows whether the view keeps its promises, k, l and t, the risk of re-identification, the loss
    by generalization, and the share of suppressed records. Persons are counted where possible; the
    output says how. It then shows what records reveal together: those of one pseudonym, and those
    that can be joined with the records of other views of the stream. For a view with differential
    privacy, which publishes no records, the command states the promise.

    Exits with 1 if the published records break what the view promises: its k, l or t.
    """
    from penstock.cli.streams.risk_plots import check_target, draw
    from penstock.config.secrets import generate_key
    from penstock.eventlog import EventLog
    from penstock.model.kinds import View
    from penstock.pipeline.control import Control
    from penstock.risk.figures import Promise
    from penstock.risk.linkage import PublishedView, measure_journalist, measure_linkage
    from penstock.risk.measurement import measure_view, read_newest

    if plot is not None:
        check_target(plot)
    config = configuration()
    with open_definitions() as store:
        known = store.current()[1].of(View)
    if name not in known:
        raise UsageError(
            f"there is no view {quote(name)}", fix=f"views are {', '.join(known) or 'none yet'}"
        )
    control = Control(config.pipeline.folder)
    folder = control.view(name)
    blueprint, last = read_newest(folder)
    promise = Promise.find(blueprint, last)
    if promise is not None and not (quasi or sensitive or plot):
        data = {"view": name, "stream": blueprint.stream.name, **promise.to_json()}
        note_use("view.measured", view=name)
        show(as_json, data, lambda target: _render_promise(target, name, promise))
        return
    log = EventLog(config.pipeline.event_log)
    meter, risk = measure_view(folder, quasi, sensitive, threshold, log)
    topic = log.topic(meter.blueprint.stream.topic)
    secret = config.pipeline.key.read_or_create(generate_key)
    found = measure_journalist(meter, topic, secret, threshold)
    if found is not None:
        risk = replace(risk, journalist=found[0], population=found[1])
    if plot is not None:
        draw(name, risk, plot)
    siblings = [it for it in known if it != name and known[it].stream == known[name].stream]
    others = [PublishedView(it, log) for it in map(control.view, siblings) if it.last() is not None]
    linkage = measure_linkage(PublishedView(folder, log, quasi), others)
    stream = {"view": name, "stream": meter.blueprint.stream.name}
    data = {**stream, **risk.to_json(), "linkage": linkage.to_json()}

    def render(target: Console) -> None:
        _render(target, name, risk)
        _render_linkage(target, linkage)
        if plot is not None:
            target.print(f"plotted in {plot}")

    note_use("view.measured", view=name)
    show(as_json, data, render)
    if any(it.kept is False for it in risk.promises):
        ctx.exit(1)


@click.command("compare")
@click.argument("names", nargs=-1, metavar="VIEW...")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 1),
    default=THRESHOLD,
    show_default=True,
    help="Count the records whose risk is above this.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Plot risk over loss, as FILE.png or FILE.svg.",
)
@json_option
def compare(names: tuple[str, ...], threshold: float, plot: Path | None, *, as_json: bool) -> None:
    """Compare views by risk and loss, in one table and plot; all views where none is named.

    The risk is the prosecutor's: 1 / size of the group. Views that have published nothing yet, or
    figures with differential privacy, have no such figures, and the table says so.
    """
    from penstock.cli.streams.risk_plots import check_target, draw_comparison
    from penstock.eventlog import EventLog
    from penstock.model.kinds import View
    from penstock.pipeline.control import Control
    from penstock.risk.figures import Promise
    from penstock.risk.measurement import measure_view, read_newest

    if plot is not None:
        check_target(plot)
    config = configuration()
    with open_definitions() as store:
        known = store.current()[1].of(View)
    for name in names:
        if name not in known:
            fix = f"views are {', '.join(known) or 'none yet'}"
            raise UsageError(f"there is no view {quote(name)}", fix=fix)
    log, control = EventLog(config.pipeline.event_log), Control(config.pipeline.folder)
    risks: dict[str, Risk] = {}
    others: dict[str, str] = {}
    for name in names or known:
        folder = control.view(name)
        if folder.last() is None:
            others[name] = "has published nothing yet"
        elif (promise := Promise.find(*read_newest(folder))) is not None:
            others[name] = f"differential privacy, epsilon {promise.epsilon:g} a window"
        else:
            risks[name] = measure_view(folder, threshold=threshold, log=log)[1]
    if plot is not None:
        draw_comparison(risks, plot)
    for name in risks:
        note_use("view.measured", view=name)
    data = {
        "views": [{"view": name, **risk.to_json()} for name, risk in risks.items()],
        "others": others,
    }

    def render(target: Console) -> None:
        target.print(_comparison(risks))
        for name, told in others.items():
            target.print(Text.assemble((name, "bold"), f"  {told}"))
        if plot is not None:
            target.print(f"plotted in {plot}")

    show(as_json, data, render)


def _comparison(risks: dict[str, Risk]) -> Table:
    made = table(
        "view", "records", "k", "promises", "highest", "mean", "above", "loss", "suppressed"
    )
    for name, risk in risks.items():
        attack = risk.prosecutor
        broken = [it.figure for it in risk.promises if it.kept is False]
        kept = "kept" if all(it.kept for it in risk.promises) else "not known"
        verdict = f"{', '.join(dict.fromkeys(broken))} NOT KEPT" if broken else kept
        made.add_row(
            name,
            f"{risk.records:,}",
            _judge(f"{risk.k:,}", bad=risk.k < 2),  # noqa: PLR2004 - alone
            _judge(verdict, bad=bool(broken)) if risk.promises else "none",
            f"{attack.most:.4f}",
            f"{attack.mean:.4f}",
            f"{attack.above:.2%}",
            "-" if risk.loss is None else f"{risk.loss:.4f}",
            f"{risk.suppressed:.2%}",
        )
    return made


def _render(target: Console, name: str, risk: Risk) -> None:
    head = f"{risk.records:,} records in {risk.groups:,} groups"
    fields = ", ".join(risk.quasi_identifiers) or "no field: all records are alike"
    target.print(Text.assemble((name, "bold"), f"  {head}"))
    target.print(Text.assemble(("quasi-identifiers  ", "dim"), fields))
    target.print(Text.assemble(("persons  ", "dim"), risk.persons))
    if not risk.quasi_identifiers:
        words = "no quasi-identifier is declared, so the figures cannot show a risk of linking"
        target.print(Text.assemble(("warning: ", "bold yellow"), words))
        target.print("→ give the stream's fields a category, or name some by --quasi-identifier")
    if risk.exposed:
        words = f"identifiers are published as they are: {', '.join(risk.exposed)}"
        target.print(Text.assemble(("warning: ", "bold yellow"), words))
    if risk.earlier:
        target.print(Text(f"{risk.earlier:,} records of earlier definitions are left out", "dim"))
    if risk.records < risk.published:
        missing = risk.published - risk.records
        target.print(Text(f"{missing:,} records are in no file and are not measured", "dim"))
    if risk.share < 1:
        target.print(Text(f"measured on a random {risk.share:.2%} of the groups", "dim"))
    if risk.promises:
        target.print()
        _render_promises(target, risk)
    target.print()
    target.print(_figures(risk))
    if risk.sensitive:
        target.print()
        target.print(_hidden(risk))
    target.print()
    target.print(_sizes(risk))


def _render_promises(target: Console, risk: Risk) -> None:
    """Say of each promise whether it is kept, and what breaks it."""
    made = table("promise", "measured", "")
    for it in risk.promises:
        of = "" if it.field is None else f" of {it.field}"
        sign = "≤" if it.figure == "t" else "≥"
        measured = "-" if it.measured is None else f"{it.measured:.4g}"
        if it.kept is None:
            verdict = Text(f"not known: {it.reason}", "yellow")
        elif it.kept:
            verdict = Text("kept", "green")
        else:
            groups = "1 group" if it.groups == 1 else f"{it.groups:,} groups"
            records = "1 record" if it.records == 1 else f"{it.records:,} records"
            verdict = Text(f"NOT KEPT in {groups} with {records}", "bold red")
        made.add_row(f"{it.figure}{of} {sign} {it.promised:g}", measured, verdict)
    target.print(made)


def _render_linkage(target: Console, linkage: Linkage) -> None:
    """Show what records tell together; nothing where no pseudonym and no other view links them."""
    if linkage.pseudonyms:
        made = table("linked by", "pseudonyms", "records each", "k", "alone", "mean risk")
        for found in linkage.pseudonyms:
            share = found.alone / found.pseudonyms if found.pseudonyms else 0.0
            made.add_row(
                found.field,
                f"{found.pseudonyms:,}",
                f"{found.records:g}",
                _judge(f"{found.k:,}", bad=found.k == 1),
                _judge(f"{found.alone:,} ({share:.1%})", bad=found.alone > 0),
                f"{found.mean:.4f}",
            )
        target.print()
        target.print(made)
    if linkage.views:
        made = table("joined with", "by", "paired", "k of pairs", "alone")
        for it in linkage.views:
            share = it.paired / it.records if it.records else 0.0
            made.add_row(
                it.view,
                ", ".join(it.fields) or "nothing in common",
                _judge(f"{it.paired:,} ({share:.1%})", bad=it.paired > 0),
                _judge(f"{it.k:,}", bad=it.k == 1),
                _judge(f"{it.alone:,}", bad=it.alone > 0),
            )
        target.print()
        target.print(made)


def _render_promise(target: Console, name: str, promise: Promise) -> None:
    rows = f"{promise.published:,} rows of noisy figures, no records"
    target.print(Text.assemble((name, "bold"), f"  {rows}"))
    target.print(
        "k, l, t and the risk of being re-identified have no meaning here, and are not measured;"
        "\nwhat bounds the risk is differential privacy, whatever the figures are."
    )
    target.print()
    made = table("figure", "value", "meaning")
    period = "ever" if promise.renew is None else f"in {_say_period(promise.renew)}"
    made.add_row("epsilon", f"{promise.epsilon:g}", "what a window reveals of a person at most")
    made.add_row("budget", f"{promise.budget:g}", f"what all windows reveal of a person {period}")
    factor = f"{promise.factor:,.1f}" if promise.budget < HOPELESS else "huge"
    made.add_row("", factor, "times as likely is any outcome with a person as without: e^budget")
    made.add_row(
        "windows", f"{promise.windows_per_person:,}", f"in which a person counts, {period}"
    )
    made.add_row("contribution", f"{promise.contribution:,}", "records of a person in a window")
    made.add_row("rejected", f"{promise.rejected:,}+", "records that counted in no figure")
    target.print(made)


def _say_period(milliseconds: int) -> str:
    return str(timedelta(milliseconds=milliseconds)).removesuffix(", 0:00:00")


def _figures(risk: Risk) -> Table:
    made = table("figure", "value", "meaning")
    made.add_row("k", _judge(f"{risk.k:,}", bad=risk.k < 2), f"{risk.unit} in the smallest group")  # noqa: PLR2004 - alone
    if risk.unit != "records":
        made.add_row("", f"{risk.k_records:,}", "records in the smallest group")
    for title, attack in (("prosecutor", risk.prosecutor), ("journalist", risk.journalist)):
        for value, meaning in _attack(attack, risk.threshold):
            made.add_row(title, value, meaning)
            title = ""  # noqa: PLW2901 - named once
    if risk.population:
        made.add_row("", "", Text(f"among {risk.population}", "dim"))
    lost = "-" if risk.loss is None else f"{risk.loss:.4f}"
    meaning = "is not counted" if risk.loss is None else "lost by generalization (0: nothing)"
    made.add_row("loss", lost, meaning)
    made.add_row(
        "suppressed", f"{risk.suppressed:.2%}", "of records, since too few others were alike"
    )
    return made


def _attack(attack: Attack, threshold: float) -> list[tuple[Text, str]]:
    return [
        (_judge(f"{attack.most:.4f}", bad=attack.most > threshold), "highest risk of a record"),
        (Text(f"{attack.mean:.4f}"), "average risk per record"),
        (
            _judge(f"{attack.above:.2%}", bad=attack.above > 0),
            f"of records have a risk above {threshold:g}",
        ),
    ]


def _judge(value: str, *, bad: bool) -> Text:
    return Text(value, "bold red" if bad else "green")


def _hidden(risk: Risk) -> Table:
    made = table("sensitive", "l distinct", "l entropy", "t", "distance")
    for name, found in risk.sensitive.items():
        made.add_row(
            name,
            _judge(f"{found.distinct:,}", bad=found.distinct == 1 and found.distance != "none"),
            f"{found.entropy:.2f}",
            f"{found.closeness:.4f}",
            found.distance,
        )
    return made


def _sizes(risk: Risk) -> Table:
    made = table(f"{risk.unit} in a group", "groups", "records", "")
    most = max((bar.records for bar in risk.sizes), default=0)
    for bar in risk.sizes:
        upper = "" if bar.most == bar.least else f" to {bar.most:,}"
        label = f"{bar.least:,}{upper}" if bar.most else f"{bar.least:,} and more"
        drawn = "█" * max(1, round(BAR * bar.records / most))
        made.add_row(label, f"{bar.groups:,}", f"{bar.records:,}", Text(drawn, "blue"))
    return made
