"""nGQL text to tokens, with the escapes and the traps of the real scanner (raw line feeds, raw NULs, octal limits)."""

from __future__ import annotations

import re
from dataclasses import dataclass


class NgqlError(Exception):
    """An error answer: `code` and `text` as they go over the wire."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


SYNTAX, EXECUTION, EMPTY, SEMANTIC, SESSION = -1004, -1005, -1006, -1009, -1002


def syntax_error(near: str, reason: str = "syntax error") -> NgqlError:
    return NgqlError(SYNTAX, f"SyntaxError: {reason} near `{near}'")


def not_understood(what: str) -> NgqlError:
    return NgqlError(SYNTAX, f"SyntaxError: stand-in does not understand `{what}'")


@dataclass(frozen=True, slots=True)
class Token:
    """`kind`: name, quoted, string, int, float, ref, op or end. `value` is decoded, `text` as written."""

    kind: str
    value: object
    text: str
    start: int

    @property
    def word(self) -> str:
        return self.text.upper() if self.kind == "name" else ""


_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n]+)
    | (?P<comment>\#[^\n]*|//[^\n]*|/\*.*?\*/)
    | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    | (?P<quoted>`(?:[^`\\\n]|\\.)*`)
    | (?P<float>(?:\d+\.(?!\.)\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)
    | (?P<int>\d+)
    | (?P<ref>\$\$|\$\^|\$-|\$[A-Za-z_]\w*)
    | (?P<name>[A-Za-z\u00a1-\uefff][A-Za-z0-9_\u00a1-\uefff]*|_id|_type|_src|_dst|_rank)
    | (?P<op>->|<-|==|!=|<>|<=|>=|=~|\.\.|[-+*/%=<>(){}\[\],.:;|@!])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([xXuU][0-9a-fA-F]{4})|([0-7]{1,3})|(.))", re.DOTALL)
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_MAX_ABS_INT = 2**63


def tokenize(text: str) -> list[Token]:
    """Tokens of `text` and an `end` token. Raises NgqlError at the first character that begins none."""
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise syntax_error(text[position : position + 20])
        kind, raw = str(found.lastgroup), found.group()
        if kind not in ("space", "comment"):
            tokens.append(Token(kind, _decode(kind, raw), raw, position))
        position = found.end()
    tokens.append(Token("end", None, "", position))
    return tokens


def _decode(kind: str, raw: str) -> object:
    if kind == "string":
        return _unescape(_lose_after_nul(raw[1:-1]))
    if kind == "quoted":
        name = re.sub(r"\\(.)", r"\1", raw[1:-1])
        if "." in name:
            raise syntax_error(raw, "Don't allow DOT in label")
        return name
    if kind == "int":
        if int(raw) > _MAX_ABS_INT:
            raise syntax_error(raw, "Out of range:")
        return int(raw)
    return float(raw) if kind == "float" else raw


def _lose_after_nul(body: str) -> str:
    # The scanner copies plain runs with strncpy: whatever follows a raw NUL in the run becomes NULs.
    if "\0" not in body:
        return body
    runs = re.split(r"(\\.)", body, flags=re.DOTALL)
    return "".join(
        run if "\0" not in run else run[: run.index("\0")] + "\0" * (len(run) - run.index("\0")) for run in runs
    )


def _unescape(body: str) -> str:
    return body if "\\" not in body else _ESCAPE.sub(_escape, body)


def _escape(found: re.Match[str]) -> str:
    code, octal, char = found.groups()
    if code:
        return chr(int(code[1:], 16))
    if octal:
        if int(octal, 8) > 0o177:
            raise not_understood("an octal escape above \\177")
        return chr(int(octal, 8))
    if char in "89":
        raise syntax_error(found.group())
    return _SHORT.get(char, char)
