"""Tokens of a portable openCypher query and the small steps that its translation is made of. Knows no registry."""

from __future__ import annotations

import re
from dataclasses import dataclass

from recall.errors import InvalidRequest

_TOKEN = re.compile(
    r"""
      (?P<space>\s+)
    | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<name>`[^`]+`)
    | (?P<param>\$\w+)
    | (?P<number>\d+(?:\.(?!\.)\d+)?(?:[eE][+-]?\d+)?)
    | (?P<word>[^\W\d]\w*)
    | (?P<op><>|<=|>=|\.\.|[()\[\]{},.:|=<>+\-*])
    """,
    re.VERBOSE | re.DOTALL,
)
_STRING_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str


class Cursor:
    """A query and a position in it. Raises InvalidRequest where something else was expected."""

    def __init__(self, query: str) -> None:
        self._tokens = _scan(query)
        self._at = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _is(self, *words: str) -> bool:
        parts = self._tokens[self._at : self._at + len(words)]
        return [part.text.upper() if part.kind == "word" else "" for part in parts] == list(words)

    def _word(self, *words: str) -> bool:
        if self._is(*words):
            self._at += len(words)
            return True
        return False

    def _need(self, word: str) -> None:
        if not self._word(word):
            raise self._not_understood()

    def _op(self, op: str) -> bool:
        if self._token.kind == "op" and self._token.text == op:
            self._at += 1
            return True
        return False

    def _need_op(self, op: str) -> None:
        if not self._op(op):
            raise self._not_understood()

    def _name(self) -> str:
        token = self._token
        if token.kind not in ("word", "name"):
            raise self._not_understood()
        self._at += 1
        return token.text.strip("`")

    def _variable(self) -> str:
        name = self._name()
        if not name.isascii() or not name.replace("_", "a").isalnum():
            raise InvalidRequest(f"variable {name!r} must be made of letters, digits and underscores")
        return name

    def _not_understood(self) -> InvalidRequest:
        near = self._token.text or "the end"
        return InvalidRequest(
            f"the graph query is not understood near {near!r}: expected one pattern, as in "
            "MATCH (n:Label {id: $id})-[:REL*1..2]->(m:Target) WHERE m.field = $value RETURN m.id"
        )

    def _number(self, *, negative: bool = False) -> int | float:
        raw = self._token.text
        self._at += 1
        value = int(raw) if raw.isdecimal() else float(raw)
        return -value if negative else value

    def _integer(self) -> int:
        value = self._number()
        if not isinstance(value, int):
            raise InvalidRequest(f"expected a whole number, got {value}")
        return value


def _scan(query: str) -> list[Token]:
    tokens: list[Token] = []
    at = 0
    while at < len(query):
        found = _TOKEN.match(query, at)
        if found is None:
            raise InvalidRequest(f"the graph query is not understood near {query[at : at + 20]!r}")
        if found.lastgroup != "space":
            tokens.append(Token(str(found.lastgroup), found.group()))
        at = found.end()
    return [*tokens, Token("end", ""), Token("end", "")]


def unescape(body: str) -> str:
    def plain(found: re.Match[str]) -> str:
        code, char = found.groups()
        return chr(int(code, 16)) if code else _STRING_ESCAPES.get(char, char)

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", plain, body, flags=re.DOTALL)
