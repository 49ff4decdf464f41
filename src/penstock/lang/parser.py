"""From tokens to a tree: precedence climbing over the grammar in the reference.

    choice   = or [ "?" or ":" choice ]
    or       = and { "||" and }
    and      = relation { "&&" relation }
    relation = sum [ ( "==" | "!=" | "<" | "<=" | ">" | ">=" | "in" ) sum ]
    sum      = product { ( "+" | "-" ) product }
    product  = unary { ( "*" | "/" | "%" ) unary }
    unary    = ( "!" | "-" ) unary | postfix
    postfix  = primary { "." NAME [ "(" list ")" ] | "[" choice "]" }
    primary  = INT | DOUBLE | STRING | "true" | "false" | NAME [ "(" list ")" ]
             | "(" choice ")" | "[" list "]" | "{" entries "}"

Rules that hold here:
- The first mistake ends parsing: what follows it would be guesswork.
- Depth and number of nodes are bounded while the tree grows; recursion of the parser
  is bounded by the nesting of the text, which counts against the same bound.
"""

from __future__ import annotations

from penstock.errors import quote
from penstock.lang import syntax
from penstock.lang.errors import MAX_DEPTH, MAX_INT, MAX_NODES, FaultError, Span
from penstock.lang.syntax import Token, TokenKind, split_tokens

_RELATIONS = frozenset({"==", "!=", "<", "<=", ">", ">=", "in"})
_LEVELS = (frozenset("+-"), frozenset("*/%"))
_WORDS = {"and": "&&", "or": "||", "not": "!", "AND": "&&", "OR": "||", "NOT": "!", "is": "=="}
_NULLS = frozenset({"null", "None", "nil", "undefined"})


def parse(text: str) -> syntax.Node:
    """Return the tree of an expression's text; raise FaultError where it is wrong."""
    return _Parser(split_tokens(text)).parse()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.nesting = 0
        self.nodes = 0

    # Tokens

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def next(self) -> Token:
        token = self.token
        if token.kind is not TokenKind.END:
            self.at += 1
        return token

    def sign(self) -> str:
        """Return the sign at hand; empty where something else stands."""
        token = self.token
        if token.kind is TokenKind.SIGN or (token.kind is TokenKind.NAME and token.value == "in"):
            return str(token.value)
        return ""

    def accept(self, sign: str) -> bool:
        if self.sign() != sign:
            return False
        self.next()
        return True

    def expect(self, sign: str, opened: Token | None = None) -> Token:
        if self.sign() != sign:
            raise self.unexpected(f"{quote(sign)} expected", _close(opened) if opened else None)
        return self.next()

    def unexpected(self, message: str, fix: str | None = None) -> FaultError:
        token = self.token
        if token.kind is TokenKind.END:
            return FaultError(token.span, f"{message}, but the expression ends here", fix)
        if token.kind is TokenKind.NAME and token.value in _WORDS:
            fix = f"write {_WORDS[str(token.value)]} instead of {token.value}"
        found = "a string" if token.kind is TokenKind.STRING else quote(token.value)
        return FaultError(token.span, f"{message}, found {found}", fix)

    # Bounds

    def measure(self, span: Span, *children: syntax.Node) -> int:
        """Count a node and return its depth."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise FaultError(
                span,
                f"the expression has more than {MAX_NODES} parts",
                "put long lists into attributes",
            )
        depth = 1 + max((child.depth for child in children), default=0)
        if depth > MAX_DEPTH:
            raise _too_deep(span)
        return depth

    def leaf(self, span: Span, value: bool | float | str) -> syntax.Literal:  # noqa: FBT001 - a literal, not a switch
        return syntax.Literal(span, value, self.measure(span))

    # Grammar

    def parse(self) -> syntax.Node:
        node = self.choice()
        if self.token.kind is not TokenKind.END:
            if self.sign() in _RELATIONS:
                raise self.unexpected(
                    "comparisons cannot be chained", "write a < b && b < c, or use parentheses"
                )
            raise self.unexpected("an operator or the end expected")
        return node

    def choice(self) -> syntax.Node:
        self.nesting += 1
        if self.nesting > MAX_DEPTH:
            raise _too_deep(self.token.span)
        condition = self.logic("||")
        if self.accept("?"):
            yes = self.logic("||")
            self.expect(":")
            no = self.choice()
            span = Span(condition.span.start, no.span.end)
            depth = self.measure(span, condition, yes, no)
            condition = syntax.Choice(span, condition, yes, no, depth)
        self.nesting -= 1
        return condition

    def logic(self, sign: str) -> syntax.Node:
        term = self.logic("&&") if sign == "||" else self.relation()
        if self.sign() != sign:
            return term
        terms = [term]
        while self.accept(sign):
            terms.append(self.logic("&&") if sign == "||" else self.relation())
        span = Span(term.span.start, terms[-1].span.end)
        return syntax.Logic(span, sign, tuple(terms), self.measure(span, *terms))

    def relation(self) -> syntax.Node:
        left = self.arithmetic(0)
        if self.sign() in _RELATIONS:
            return self.binary(left, self.next(), self.arithmetic(0))
        return left

    def arithmetic(self, level: int) -> syntax.Node:
        if level == len(_LEVELS):
            return self.unary()
        left = self.arithmetic(level + 1)
        while self.sign() in _LEVELS[level]:
            left = self.binary(left, self.next(), self.arithmetic(level + 1))
        return left

    def binary(self, left: syntax.Node, sign: Token, right: syntax.Node) -> syntax.Binary:
        span = Span(left.span.start, right.span.end)
        depth = self.measure(span, left, right)
        return syntax.Binary(span, str(sign.value), sign.span, left, right, depth)

    def unary(self) -> syntax.Node:
        signs = []
        while self.sign() in {"!", "-"}:
            signs.append(self.next())
        if signs and signs[-1].value == "-" and self.token.kind is TokenKind.INT:
            # The least int has no positive counterpart, so minus belongs to the literal.
            minus, number = signs.pop(), self.next()
            span = Span(minus.span.start, number.span.end)
            node = self.postfix(self.leaf(span, -int(number.value)))
        else:
            node = self.postfix(self.primary())
        for sign in reversed(signs):
            span = Span(sign.span.start, node.span.end)
            node = syntax.Unary(span, str(sign.value), node, self.measure(span, node))
        return node

    def postfix(self, node: syntax.Node) -> syntax.Node:
        while True:
            if self.accept("."):
                name = self.name()
                if self.sign() == "(":
                    node = self.call(node, name)
                else:
                    span = Span(node.span.start, name.span.end)
                    depth = self.measure(span, node)
                    node = syntax.Select(span, node, str(name.value), name.span, depth)
            elif self.sign() == "[":
                opened = self.next()
                index = self.choice()
                closed = self.expect("]", opened)
                span = Span(node.span.start, closed.span.end)
                node = syntax.Index(span, node, index, self.measure(span, node, index))
            else:
                return node

    def name(self) -> Token:
        if self.token.kind is not TokenKind.NAME:
            raise self.unexpected(
                "the name of a field or method expected",
                'a field of another form is written ["like-this"]',
            )
        return self.next()

    def call(self, target: syntax.Node | None, name: Token) -> syntax.Call:
        opened = self.expect("(")
        arguments = self.items(")", opened)
        closed = self.expect(")", opened)
        start = name.span.start if target is None else target.span.start
        span = Span(start, closed.span.end)
        children = arguments if target is None else (target, *arguments)
        depth = self.measure(span, *children)
        return syntax.Call(span, target, str(name.value), name.span, arguments, depth)

    def items(self, closing: str, opened: Token) -> tuple[syntax.Node, ...]:
        items: list[syntax.Node] = []
        while self.sign() != closing:
            if items and not self.accept(","):
                raise self.unexpected(f"',' or {quote(closing)} expected", _close(opened))
            items.append(self.choice())
        return tuple(items)

    def primary(self) -> syntax.Node:
        token = self.token
        if token.kind in {TokenKind.INT, TokenKind.DOUBLE, TokenKind.STRING}:
            self.next()
            if token.kind is TokenKind.INT and token.value == MAX_INT + 1:
                raise FaultError(token.span, f"{token.value} is beyond the range of int (64 bits)")
            return self.leaf(token.span, token.value)
        if token.kind is TokenKind.NAME and token.value != "in":
            return self.word(self.next())
        if token.kind is TokenKind.SIGN and token.value in {"(", "[", "{"}:
            return self.bracket(self.next())
        raise self.unexpected("a value expected")

    def word(self, token: Token) -> syntax.Node:
        word = str(token.value)
        if word in {"true", "false"}:
            return self.leaf(token.span, word == "true")
        if word in _NULLS:
            raise FaultError(
                token.span,
                f"there is no {word}: a value is there or it is missing",
                "ask with has(o.field), or !has(o.field)",
            )
        if self.sign() == "(":
            return self.call(None, token)
        return syntax.Name(token.span, word, self.measure(token.span))

    def bracket(self, opened: Token) -> syntax.Node:
        if opened.value == "(":
            node = self.choice()
            self.expect(")", opened)
            return node
        if opened.value == "[":
            items = self.items("]", opened)
            span = Span(opened.span.start, self.expect("]", opened).span.end)
            return syntax.ListLiteral(span, items, self.measure(span, *items))
        entries: list[tuple[syntax.Node, syntax.Node]] = []
        while self.sign() != "}":
            if entries and not self.accept(","):
                raise self.unexpected("',' or '}' expected", _close(opened))
            key = self.choice()
            self.expect(":")
            entries.append((key, self.choice()))
        span = Span(opened.span.start, self.expect("}", opened).span.end)
        children = [node for entry in entries for node in entry]
        return syntax.MapLiteral(span, tuple(entries), self.measure(span, *children))


def _close(opened: Token) -> str:
    return f"close the {quote(opened.value)} at character {opened.span.start + 1}"


def _too_deep(span: Span) -> FaultError:
    return FaultError(
        span,
        f"the expression nests deeper than {MAX_DEPTH} levels",
        "split it into several policies",
    )
