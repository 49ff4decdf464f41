"""The fast form: a Python function, generated from the tree and compiled once.

Rules that hold here:
- Only our own words stand in the generated source: parameters are `r0, r1, …`, locals
  `v0, v1, …`, and everything an author wrote (names, texts, numbers, patterns) is
  bound to `k0, k1, …` in the function's namespace. No text of an author is compiled.
- None is missing. Values from outside are checked where they are read.
- Statements follow the tree; blocks nest for logic, choice and quantifiers only, so the
  bound on the tree's depth keeps them within what Python compiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple, assert_never

from penstock.lang import runtime, tree
from penstock.lang.errors import MAX_DURATION, MAX_INT, MIN_INT
from penstock.lang.operations import SET_OPERATIONS
from penstock.lang.types import BOOL, DOUBLE, DURATION, INT, STRING, TIMESTAMP, ListOf, Scalar, Type

_BUILTINS: Final = {"type": type, "len": len, "str": str, "int": int, "float": float,
                    "dict": dict, "list": list}  # fmt: skip

# Operations whose result is there whenever their arguments are.
TOTAL: Final = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "not": "not {0}",
    "neg_double": "-{0}",
    "neg_duration": "-{0}",
    "contains": "{1} in {0}",
    "starts_with": "{0}.startswith({1})",
    "ends_with": "{0}.endswith({1})",
    "lower": "lower({0})",
    "levels": "{0}.split('/')",
    "includes": "includes({0}, {1})",
    "size_string": "len({0})",
    "size_list": "len({0})",
    "size_map": "len({0})",
    "in_map": "{0} in {1}",
    "keys": "list({0})",
    "string_from_int": "str({0})",
    "string_from_bool": "string_from_bool({0})",
    "int_from_timestamp": "int_from_timestamp({0})",
    "year": "{0}.year",
    "month": "{0}.month",
    "day": "{0}.day",
    "hour": "{0}.hour",
    "minute": "{0}.minute",
    "second": "{0}.second",
    "millisecond": "{0}.microsecond // 1000",
    "dayOfWeek": "{0}.isoweekday()",
    "dayOfYear": "day_of_year({0})",
    "days": "count_units({0}, DAY)",
    "hours": "count_units({0}, HOUR)",
    "minutes": "count_units({0}, MINUTE)",
    "seconds": "count_units({0}, SECOND)",
    "milliseconds": "count_units({0}, MILLISECOND)",
}

# Operations whose result may be out of range: the result, and when it is none.
_INT_RANGE = f"not {MIN_INT} <= {{v}} <= {MAX_INT}"
_FINITE = "{v} - {v} != 0.0"
_DURATION_RANGE = "not MIN_DURATION <= {v} <= MAX_DURATION"
RANGED: Final = {
    "neg_int": ("-{0}", _INT_RANGE),
    "add_int": ("{0} + {1}", _INT_RANGE),
    "sub_int": ("{0} - {1}", _INT_RANGE),
    "mul_int": ("{0} * {1}", _INT_RANGE),
    "add_double": ("{0} + {1}", _FINITE),
    "sub_double": ("{0} - {1}", _FINITE),
    "mul_double": ("{0} * {1}", _FINITE),
    "div_double": ("{0} / {1} if {1} else INFINITY", _FINITE),
    "sub_times": ("{0} - {1}", _DURATION_RANGE),
    "add_duration": ("{0} + {1}", _DURATION_RANGE),
    "sub_duration": ("{0} - {1}", _DURATION_RANGE),
}

# Operations that a function of the runtime carries out; it returns None for missing.
CALLED: Final = {
    "div_int": "div_int({0}, {1})",
    "mod_int": "mod_int({0}, {1})",
    "add_string": "add_string({0}, {1})",
    "add_time": "add_time({0}, {1})",
    "sub_time": "sub_time({0}, {1})",
    "mul_duration": "mul_duration({0}, {1})",
    "to_double": "to_double({0})",
    "int_from_double": "int_from_double({0})",
    "int_from_string": "int_from_string({0})",
    "double_from_string": "double_from_string({0})",
    "timestamp_from_string": "read_timestamp({0})",
    "timestamp_from_int": "from_seconds({0})",
    "level": "level({0}, {1})",
    "moment_in_zone": "read_moment({0}, {1})",
    "date_in_zone": "read_date({0}, {1})",
}

_CHECKS: Final = {
    BOOL: "if {v} is not True and {v} is not False: {v} = None",
    INT: f"if type({{v}}) is not int or {_INT_RANGE}: {{v}} = None",
    DOUBLE: "if type({v}) is not float or {v} - {v} != 0.0: {v} = as_double({v})",
    STRING: "if type({v}) is not str or not ({v}.isascii() or is_text({v})): {v} = None",
    TIMESTAMP: "if type({v}) is not datetime or {v}.tzinfo is not UTC: {v} = as_timestamp({v})",
    DURATION: "if type({v}) is not timedelta or " + _DURATION_RANGE + ": {v} = None",
}
_CHECK_LIST: Final = "if type({v}) not in LISTS: {v} = as_list({v})"
_CHECK_MAP: Final = "if type({v}) is not dict: {v} = as_map({v})"

_NAMESPACE: Final = {
    **runtime.NAMES,
    "INFINITY": float("inf"),
    "MIN_DURATION": -MAX_DURATION,
    "MAX_DURATION": MAX_DURATION,
    "DAY": timedelta(days=1),
    "HOUR": timedelta(hours=1),
    "MINUTE": timedelta(minutes=1),
    "SECOND": timedelta(seconds=1),
    "MILLISECOND": timedelta(milliseconds=1),
}


@dataclass(frozen=True, slots=True)
class Generated:
    """A generated function and the source it was compiled from."""

    source: str
    function: Callable[..., Any]


class _Operand(NamedTuple):
    """A name of the generated source, and whether it can be None."""

    name: str
    optional: bool


def generate(node: tree.Node, roots: Sequence[str]) -> Generated:
    """Generate the function of a tree; it takes the roots in order."""
    writer = _Writer(roots)
    writer.share(node)
    result = writer.write(node)
    if isinstance(node.type, Scalar):
        writer.line(f"return {result.name}")
    else:
        writer.line(f"return finish({result.name}, {writer.bind(node.type)})")
    parameters = ", ".join(f"r{index}" for index in range(len(roots)))
    source = f"def evaluate({parameters}):\n" + "\n".join(writer.lines) + "\n"
    namespace = {"__builtins__": _BUILTINS, **_NAMESPACE, **writer.constants}
    # The source is made of our own words alone; see the rules above.
    exec(compile(source, "<expression>", "exec"), namespace)  # noqa: S102
    return Generated(source, namespace["evaluate"])


class _Writer:
    """Writes the statements of a tree."""

    def __init__(self, roots: Sequence[str]) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self._roots = {name: f"r{index}" for index, name in enumerate(roots)}
        self._elements: dict[int, str] = {}
        self._shared: dict[tuple[str, ...], _Operand] = {}
        self._indent = 1
        self._count = 0

    def line(self, text: str) -> None:
        self.lines.append(" " * self._indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    def local(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def bind(self, value: Any) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    def check(self, name: str, kind: Type) -> None:
        if isinstance(kind, Scalar):
            template = _CHECKS[kind]
        else:
            template = _CHECK_LIST if isinstance(kind, ListOf) else _CHECK_MAP
        self.line(template.format(v=name))

    def assign(self, expression: str, *operands: _Operand) -> _Operand:
        """Assign an expression where all operands are there, else None."""
        name = self.local()
        absent = " or ".join(f"{operand.name} is None" for operand in operands if operand.optional)
        self.line(f"{name} = " + (f"None if {absent} else " if absent else "") + expression)
        return _Operand(name, optional=bool(absent))

    def read(self, expression: str, kind: Type, *operands: _Operand) -> _Operand:
        """Assign a value from outside and check it."""
        name = self.assign(expression, *operands).name
        self.check(name, kind)
        return _Operand(name, optional=True)

    def share(self, node: tree.Node) -> None:
        """Read fields once, at the start, that are read several times or within a loop."""
        fields = {path: part for part in tree.walk(node) if (path := _field_path(part))}
        times = Counter(_field_path(part) for part in tree.walk(node))
        for part in tree.walk(node):
            if isinstance(part, tree.Quantifier):
                times.update(2 * [_field_path(inner) for inner in tree.walk(part.body)])
        for path in sorted(fields, key=len):
            if times[path] > 1:
                self._shared[path] = self.write(fields[path])

    def write(self, node: tree.Node) -> _Operand:  # noqa: C901, PLR0911, PLR0912 - one case per node
        match node:
            case tree.Constant():
                return _Operand(self.bind(node.value), optional=False)
            case tree.Root():
                return _Operand(self._roots[node.name], optional=True)
            case tree.Variable():
                return _Operand(self._elements[node.slot], optional=True)
            case tree.Field():
                return self._field(node)
            case tree.Entry():
                entries, key = self.write(node.operand), self.write(node.key)
                return self.read(f"{entries.name}.get({key.name})", node.type, entries, key)
            case tree.Element():
                items, index = self.write(node.operand), self.write(node.index)
                check = self.bind(runtime.find_check(node.type))
                get = f"element({items.name}, {index.name}, {check})"
                return self.read(get, node.type, items, index)
            case tree.Apply(operation="in_list"):
                return self._member(*node.arguments)
            case tree.Apply() if node.operation in SET_OPERATIONS:
                return self._set_operation(node)
            case tree.Apply():
                return self._apply(node)
            case tree.Matches():
                operand = self.write(node.operand)
                return self.assign(f"{self.bind(node.pattern.search)}({operand.name})", operand)
            case tree.Logic():
                return self._logic(node)
            case tree.Choice():
                return self._choice(node)
            case tree.Has():
                operand = self.write(node.operand)
                name = self.local()
                self.line(f"{name} = {operand.name} is not None")
                return _Operand(name, optional=False)
            case tree.Quantifier():
                return self._quantifier(node)
            case tree.MakeList():
                parts = [self.write(item).name for item in node.items]
                return self.assign(f"[{', '.join(parts)}]")
            case tree.MakeMap():
                pairs = [
                    f"{self.bind(key)}: {self.write(value).name}" for key, value in node.entries
                ]
                return self.assign("{" + ", ".join(pairs) + "}")
            case _:
                assert_never(node)

    def _field(self, node: tree.Field) -> _Operand:
        shared = self._shared.get(_field_path(node) or ())
        if shared is not None:
            return shared
        record, name = self.write(node.operand).name, self.bind(node.name)
        get = f"{record}.get({name}) if type({record}) is dict else get({record}, {name})"
        return self.read(get, node.type)

    def _apply(self, node: tree.Apply) -> _Operand:
        operands = [self.write(argument) for argument in node.arguments]
        names = [operand.name for operand in operands]
        if node.operation in TOTAL:
            return self.assign(TOTAL[node.operation].format(*names), *operands)
        if node.operation in CALLED:
            call = CALLED[node.operation].format(*names)
            return self.assign(call, *operands)._replace(optional=True)
        expression, out_of_range = RANGED[node.operation]
        result = self.assign(expression.format(*names), *operands)
        there = f"{result.name} is not None and " if result.optional else ""
        test = out_of_range.format(v=result.name)
        self.line(f"if {there}({test}): {result.name} = None")
        return _Operand(result.name, optional=True)

    def _set_operation(self, node: tree.Apply) -> _Operand:
        one, other = (self.write(argument) for argument in node.arguments)
        kind = node.arguments[0].type
        if not isinstance(kind, ListOf):
            raise TypeError(f"the checker let {kind} pass as a list")
        check = self.bind(runtime.find_check(kind.element))
        call = f"{node.operation}({one.name}, {other.name}, {check})"
        return self.assign(call, one, other)._replace(optional=True)

    def _member(self, item: tree.Node, items: tree.Node) -> _Operand:
        one = self.write(item)
        if isinstance(items, tree.MakeList) and all(
            isinstance(part, tree.Constant) for part in items.items
        ):
            values = frozenset(
                part.value for part in items.items if isinstance(part, tree.Constant)
            )
            return self.assign(f"{one.name} in {self.bind(values)}", one)
        many = self.write(items)
        if _is_made(items):
            found = self.assign(f"member_made({one.name}, {many.name})", one, many)
        elif item.type == STRING:
            # Only a text equals a text, so a hit is a hit, whatever else the list holds.
            found = self.assign(
                f"{one.name} in {many.name}.members if type({many.name}) is TextList"
                f" else {one.name} in {many.name} or absent({many.name})",
                one,
                many,
            )
        else:
            check = self.bind(runtime.find_check(item.type))
            found = self.assign(f"member({one.name}, {many.name}, {check})", one, many)
        return _Operand(found.name, optional=True)

    def _logic(self, node: tree.Logic) -> _Operand:
        # The value so far is never the decisive one within the block; a term that is
        # neutral leaves it, any other replaces it.
        decisive, neutral = ("False", "True") if node.kind == "and" else ("True", "False")
        name = self.local()
        first = self.write(node.terms[0])
        self.line(f"{name} = {first.name}")
        optional = first.optional
        for node_term in node.terms[1:]:
            with self.block(f"if {name} is not {decisive}:"):
                term = self.write(node_term)
                self.line(f"if {term.name} is not {neutral}: {name} = {term.name}")
            optional = optional or term.optional
        return _Operand(name, optional)

    def _choice(self, node: tree.Choice) -> _Operand:
        condition = self.write(node.condition)
        name = self.local()
        with self.block(f"if {condition.name} is True:"):
            yes = self.write(node.yes)
            self.line(f"{name} = {yes.name}")
        with self.block(f"elif {condition.name} is False:"):
            no = self.write(node.no)
            self.line(f"{name} = {no.name}")
        with self.block("else:"):
            self.line(f"{name} = None")
        return _Operand(name, condition.optional or yes.optional or no.optional)

    def _quantifier(self, node: tree.Quantifier) -> _Operand:
        decisive, start = ("True", "False") if node.kind == "exists" else ("False", "True")
        items = self.write(node.operand)
        name, element = self.local(), self.local()
        self.line(f"{name} = None")
        self._elements[node.slot] = element
        with self.block(f"if {items.name} is not None and len({items.name}) <= {node.limit}:"):
            self.line(f"{name} = {start}")
            with self.block(f"for {element} in {items.name}:"):
                if isinstance(node.operand.type, ListOf):
                    self.check(element, node.operand.type.element)
                body = self.write(node.body)
                with self.block(f"if {body.name} is {decisive}:"):
                    self.line(f"{name} = {decisive}")
                    self.line("break")
                if body.optional:
                    self.line(f"if {body.name} is None: {name} = None")
        return _Operand(name, optional=True)


def _field_path(node: tree.Node) -> tuple[str, ...] | None:
    return tree.find_path(node) if isinstance(node, tree.Field) else None


def _is_made(node: tree.Node) -> bool:
    return isinstance(node, tree.MakeList) or (
        isinstance(node, tree.Apply) and node.operation in {"levels", *SET_OPERATIONS}
    )
