"""The checks of views and hierarchies, which know all masks and anonymizers.

Rules that hold here:
- Two topics never have one name, whether of a stream or of a view.
- A view that makes groups bears no risk that it does not acknowledge; see `grouping_risks`.
- A set loads this module when it holds a view or a hierarchy: who has none loads no masks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from pydantic import ValidationError

from penstock.definitions.grouping_risks import check_grouping_risks
from penstock.definitions.views import Definitions, ViewPlan, find_plan, hierarchies_of, read_steps
from penstock.errors import Problem, quote
from penstock.masks import Hierarchy
from penstock.model import kinds
from penstock.model.definition import Definition
from penstock.model.document import Document, Key

Finding = tuple[Key, Problem]
Kind = TypeVar("Kind", bound=Definition)


def check_views(views: Iterable[kinds.View], definitions: Definitions) -> Iterator[Finding]:
    """Yield what is wrong with views; places are within the view."""
    hierarchies = hierarchies_of(definitions)
    topics: dict[str, list[Key]] = {}
    for other in definitions.values():
        if isinstance(other, kinds.Stream | kinds.View):
            topics.setdefault(other.topic, []).append(other.key)
    for view in views:
        for key in topics[view.topic]:
            if key != view.key:
                message = f"its topic {quote(view.topic)} is the topic of {key} too"
                yield view.key, Problem("name", message, "rename one of them")
        stream = find(definitions, kinds.Stream, view.stream)
        problems: list[Problem] = []
        if stream is None:  # a dangling reference, which is told elsewhere
            read_steps(view, problems)
        else:
            plan = find_plan(view, stream, hierarchies, problems)
            if plan is not None:
                problems += check_grouping_risks(
                    view, stream, plan, definitions, partial(_plan_of, definitions, hierarchies)
                )
        yield from ((view.key, problem) for problem in problems)


def _plan_of(
    definitions: Definitions, hierarchies: Mapping[str, Hierarchy], view: kinds.View
) -> ViewPlan | None:
    stream = find(definitions, kinds.Stream, view.stream)
    return None if stream is None else find_plan(view, stream, hierarchies, [])


def check_rest(document: Document, definitions: Definitions) -> Iterator[Problem]:
    """Yield what is wrong with the anonymizers of a view that other fields keep from being one."""
    body = {name: document.body.get(name) for name in ("stream", "anonymizers")}
    try:
        view = kinds.View.model_validate({"name": document.name, **body})
    except ValidationError:
        return  # told already
    stream = find(definitions, kinds.Stream, view.stream)
    if stream is not None:
        problems: list[Problem] = []
        find_plan(view, stream, hierarchies_of(definitions), problems)
        # What is wrong with its window is told already.
        yield from (it for it in problems if it.place.startswith("anonymizers"))


def check_hierarchies(
    found: Iterable[kinds.Hierarchy],
    definitions: Definitions,  # noqa: ARG001
) -> Iterator[Finding]:
    """Yield what keeps hierarchies from being trees."""
    for hierarchy in found:
        try:
            Hierarchy.model_validate(hierarchy.nested())
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                text, _, fix = detail["msg"].removeprefix("Value error, ").partition(" → ")
                yield hierarchy.key, Problem("", text, fix or None)


def find(definitions: Definitions, kind: type[Kind], name: str) -> Kind | None:
    """Return one definition, if there is such a one."""
    found = definitions.get(Key(kind.kind, name))
    return found if isinstance(found, kind) else None
