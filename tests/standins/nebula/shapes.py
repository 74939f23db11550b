"""What two statements have in common when only names, values and numbers of rows differ. Text over the real tokens."""

from __future__ import annotations

import re

from standins.nebula.lexer import Token, tokenize

_WORDS = {"TRUE": "v", "FALSE": "v", "NULL": "v"}
_COUNTED = re.compile(r"[cf]\d+")


def shape(statement: str) -> tuple[str, frozenset[str]]:
    """The frame of a statement, and the conditions of its WHERE clause, each once."""
    text = _normal(statement)
    frame, conditions = text, frozenset[str]()
    found = re.search(r" WHERE (.*?)(?= YIELD | RETURN |$)", text)
    if found:
        # A comprehension has a WHERE of its own; it stays in one piece.
        conditions = frozenset(_conditions(found.group(1)))
        frame = f"{text[: found.start()]} WHERE …{text[found.end() :]}"
    return _folded(frame), conditions


def _normal(statement: str) -> str:
    words = [_word(token) for token in tokenize(statement) if token.kind != "end"]
    text = " ".join(words)
    text = re.sub(r"\( - v - v \)|- v", "v", text)
    # Column definitions differ in type only.
    return re.sub(r"`x` (?:string|int64|double|bool) (?:NOT )?(?:v|NULL)", "`x` def", text)


def _word(token: Token) -> str:
    if token.kind in ("string", "int", "float"):
        return "v"
    if token.kind == "ref" and token.text not in ("$$", "$^", "$-"):
        return "v"
    if token.kind == "quoted":
        return "`x`"
    if token.word in _WORDS:
        return _WORDS[token.word]
    return "c" if _COUNTED.fullmatch(token.text) else token.text


def _conditions(text: str) -> list[str]:
    parts = re.split(r" AND | OR ", text)
    return [_folded(_trimmed(part)) for part in parts]


def _trimmed(part: str) -> str:
    """Without the brackets around a group that this condition begins or ends."""
    words = part.split(" ")
    while words and words[0] == "(":
        words = words[1:]
    while words and words[-1] == ")" and words.count(")") > words.count("("):
        words = words[:-1]
    return " ".join(words)


def _folded(text: str) -> str:
    """Lists of one thing, whatever their length, as one."""
    for one in (
        r"v -> v @ v",
        "v",
        "`x` def",
        "`x`",
        r"v : \( v \)",
        r"v -> v @ v : \( v \)",
        r"\$\$ \. `x` \. `x` AS c",
        r"`x` \. `x` \. `x` AS c",
    ):
        text = re.sub(rf"(?<!\S)({one})(?: , {one})+(?!\S)", r"\1", text)
    # A statement may or may not read the fields that decide its filter.
    return text.replace(" AS rid , $$ . `x` . `x` AS c", " AS rid")
