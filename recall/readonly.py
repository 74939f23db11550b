"""The read-only guard of `graph_traverse`: lets reading clauses through and names the one it refuses.

An allow-list over tokens, never a search for bad words in the text: strings, comments and back-ticked names are data.
Confinement to a tenant is the store's business, not this module's.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from recall.errors import Forbidden, InvalidRequest

Kind = Literal["word", "name", "value", "param", "punct"]

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|//[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]*|/\*.*?\*/)
    | (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    | (?P<name>`[^`]*`)
    | (?P<param>\$(?:\w+|[$^]|-(?=\.)))
    | (?P<number>0[xX][0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    | (?P<word>[^\W\d]\w*)
    | (?P<punct>\.\.|[()\[\]{},.:|=<>+\-*/%^!~&;@])
    """,
    re.VERBOSE | re.DOTALL,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READING = _words("MATCH OPTIONAL WHERE WITH UNWIND RETURN ORDER SKIP LIMIT")
_HEADS = _words("MATCH OPTIONAL WITH UNWIND RETURN")
_OPERATORS = _words("AS AND OR XOR NOT IN IS STARTS ENDS CONTAINS BY DISTINCT CASE WHEN THEN ELSE")
# Keywords after which an expression is complete.
_CLOSING = _words("END ASC ASCENDING DESC DESCENDING NULL TRUE FALSE")
_PATTERN = _words("SHORTEST ALL TRAIL ACYCLIC WSHORTEST EXISTS COUNT COLLECT")

_NGQL_READING = _READING | _words("GO FETCH LOOKUP FIND GET YIELD GROUP OFFSET")
_NGQL_HEADS = _HEADS | _words("GO FETCH LOOKUP FIND GET YIELD")
_NGQL_OPERATORS = _OPERATORS | _words(
    "FROM OVER STEPS STEP TO REVERSELY BIDIRECT ON PROP PATH SHORTEST ALL NOLOOP SUBGRAPH UPTO BOTH OUT VERTEX EDGE"
)
_NGQL_AFTER_PIPE = _NGQL_HEADS | _words("ORDER LIMIT GROUP OFFSET")
_FIND = _words("SHORTEST ALL NOLOOP SINGLE")

# Refused wherever they stand bare, even where an expression is expected; back-ticks make a name of any of them.
_WRITING = _words(
    "CREATE MERGE SET DELETE DETACH REMOVE DROP ALTER INSERT UPSERT UPDATE COPY LOAD CALL ATTACH USE INSTALL UNINSTALL "
    "EXPORT IMPORT FOREACH BEGIN COMMIT ROLLBACK CHECKPOINT TRUNCATE GRANT REVOKE UNION PROFILE EXPLAIN"
)


_OPENING, _SHUTTING = frozenset("([{"), frozenset(")]}")
_KINDS: dict[str, Kind] = {"string": "value", "number": "value", "name": "name", "param": "param", "punct": "punct"}


@dataclass(frozen=True, slots=True)
class _Token:
    """`text` as written; `word` is its comparable form: NFKC, then upper case (which also folds `ı` and `ſ`).

    `inside` is the innermost bracket that is open before the token, "" at the top.
    """

    kind: Kind
    text: str
    start: int
    inside: str
    word: str = ""

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True, slots=True)
class _Language:
    name: str
    heads: frozenset[str]
    reading: frozenset[str]
    operators: frozenset[str]
    pipes: bool


_CYPHER = _Language("openCypher", _HEADS, _READING, _OPERATORS | _PATTERN, pipes=False)
_NGQL = _Language("nGQL", _NGQL_HEADS, _NGQL_READING, _NGQL_OPERATORS | _PATTERN, pipes=True)


def check_cypher(query: str) -> None:
    """Return when `query` is one reading openCypher statement.

    Raises Forbidden naming the first clause or character that is not allowed, InvalidRequest for text that cannot be
    told apart into tokens (an open string, an open comment).
    """
    _check(_tokens(query), _CYPHER)


def check_ngql(query: str) -> None:
    """`check_cypher` for nGQL: also GO, FETCH, LOOKUP, FIND … PATH, GET SUBGRAPH, YIELD, and pipes between them."""
    tokens = _tokens(query)
    for before, token in itertools.pairwise(tokens):
        # nGQL starts a comment with `--`; what one parser skips and the other reads could hide a clause.
        if before.text == "-" and token.text == "-":
            raise Forbidden("read-only nGQL refuses `--`: write patterns with brackets, as in `-[]-`")
    _check(tokens, _NGQL)


def check(query: str) -> None:
    """`check_ngql` for a query that begins as only nGQL does (with GO, FETCH, LOOKUP …), else `check_cypher`.

    Which of the two a store can run is the store's business.
    """
    tokens = _tokens(query)
    native = tokens[0].kind == "word" and tokens[0].word in _NGQL_HEADS - _HEADS
    (check_ngql if native else check_cypher)(query)


def bounded_cypher(query: str, limit: int) -> str:
    """`query`, checked, as text that returns at most `limit` rows. Comments are gone: what was checked is what runs."""
    tokens = _tokens(query)
    _check(tokens, _CYPHER)
    returned = max((i for i, token in enumerate(tokens) if _is(token, "RETURN")), default=None)
    if returned is None:
        raise InvalidRequest("a graph query must end with RETURN")
    bound = [i for i in range(returned, len(tokens)) if _is(tokens[i], "LIMIT") and not _named(tokens, i)]
    plain = _without_comments(query, tokens)
    if not bound:
        return f"{plain} LIMIT {limit}"
    if bound[-1] != len(tokens) - 2 or not (asked := tokens[-1].text).isdecimal():
        raise InvalidRequest("LIMIT must be followed by a whole number and end the query")
    return plain.removesuffix(asked) + str(min(int(asked), limit))


def parameters(query: str) -> frozenset[str]:
    """Names of the parameters that `query` asks for, without their `$`."""
    return frozenset(token.text[1:] for token in _tokens(query) if token.kind == "param")


def quoted(name: str) -> str:
    """`name` as a back-ticked identifier. Raises InvalidRequest when it holds a back-tick itself."""
    if "`" in name or not name:
        raise InvalidRequest(f"{name!r} cannot be the name of a label, relation or property")
    return f"`{name}`"


# ---- tokens --------------------------------------------------------------------------------------------------------


def _tokens(query: str) -> list[_Token]:
    tokens = list(_scan(query))
    if not tokens:
        raise InvalidRequest("the graph query is empty")
    return tokens


def _scan(query: str) -> Iterator[_Token]:
    at = 0
    brackets: list[str] = []
    while at < len(query):
        found = _TOKEN.match(query, at)
        if found is None or (query.startswith("/*", at) and found.lastgroup == "punct"):
            raise _unreadable(query, at)
        text, group, inside = found.group(), str(found.lastgroup), brackets[-1] if brackets else ""
        if group == "word":
            yield _Token("word", text, at, inside, unicodedata.normalize("NFKC", text).upper())
        elif group != "space":
            yield _Token(_KINDS[group], text, at, inside)
        if text in _OPENING:
            brackets.append(text)
        elif text in _SHUTTING and brackets:
            brackets.pop()
        at = found.end()


def _unreadable(query: str, at: int) -> InvalidRequest | Forbidden:
    if query[at] in "'\"`":
        return InvalidRequest(f"the graph query opens a {query[at]} at character {at} and never closes it")
    if query.startswith("/*", at):
        return InvalidRequest(f"the graph query opens a comment at character {at} and never closes it")
    return Forbidden(f"a graph query may not hold {query[at]!r} (U+{ord(query[at]):04X}) outside strings")


def _without_comments(query: str, tokens: Sequence[_Token]) -> str:
    """`query` with every comment as one space, from its first token to its last."""
    out = [tokens[0].text]
    for before, token in itertools.pairwise(tokens):
        gap = query[before.end : token.start]
        out += [gap if not gap or gap.isspace() else " ", token.text]
    return "".join(out)


# ---- rules ---------------------------------------------------------------------------------------------------------


def _check(tokens: Sequence[_Token], language: _Language) -> None:
    first = tokens[0]
    if first.word not in language.heads:
        raise _refused(first, language)
    complete = False
    for index, token in enumerate(tokens):
        if token.text == ";":
            raise Forbidden(f"read-only {language.name} is one statement: `;` is refused")
        if token.text == "|" and not token.inside and not language.pipes:
            raise Forbidden(f"read-only {language.name} has no pipes: `|` is refused outside brackets")
        if token.kind == "word" and not _named(tokens, index):
            _check_word(tokens, index, language, complete=complete)
        complete = _completes(tokens, index, language)


def _check_word(tokens: Sequence[_Token], index: int, language: _Language, *, complete: bool) -> None:
    token = tokens[index]
    if token.word in _WRITING:
        raise _refused(token, language)
    if complete and token.word not in language.reading | language.operators | _CLOSING:
        raise _refused(token, language)
    before = tokens[index - 1] if index else None
    piped = language.pipes and before is not None and before.text == "|" and not token.inside
    if piped and token.word not in _NGQL_AFTER_PIPE:
        raise _refused(token, language)
    after = tokens[index + 1] if index + 1 < len(tokens) else None
    following = "" if after is None else after.word
    if token.word == "OPTIONAL" and following != "MATCH":
        raise _refused(token, language)
    if token.word == "FIND" and language.pipes and following not in _FIND:
        raise _refused(token, language)
    if token.word == "GET" and language.pipes and following != "SUBGRAPH":
        raise _refused(token, language)


def _refused(token: _Token, language: _Language) -> Forbidden:
    allowed = " ".join(sorted(language.heads))
    shown = token.word if token.kind == "word" else token.text
    return Forbidden(
        f"read-only {language.name} refuses {shown}: a query starts with one of {allowed} and only reads; "
        "a name that is also a clause goes between back-ticks"
    )


def _named(tokens: Sequence[_Token], index: int) -> bool:
    """Whether a bare word can only be a name: a property, a label, or the key of a map."""
    before = tokens[index - 1].text if index else ""
    if before in (".", ":"):
        return True
    after = tokens[index + 1].text if index + 1 < len(tokens) else ""
    return before in ("{", ",") and after == ":" and tokens[index].inside == "{"


def _completes(tokens: Sequence[_Token], index: int, language: _Language) -> bool:
    """Whether an expression or pattern may end with this token, so that a word after it has to be a keyword."""
    token = tokens[index]
    if token.kind == "punct":
        if token.text == "*":
            return index > 0 and tokens[index - 1].word in ("WITH", "RETURN", "DISTINCT", "OVER")
        return token.text in (")", "]", "}")
    if token.kind != "word" or _named(tokens, index):
        return True
    if token.word in _CLOSING:
        return True
    return token.word not in language.reading and token.word not in language.operators


def _is(token: _Token, word: str) -> bool:
    return token.kind == "word" and token.word == word
