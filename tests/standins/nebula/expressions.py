"""Recursive descent over expressions; the part of the parser that statements share."""

from __future__ import annotations

from standins.nebula.lexer import Token, not_understood, syntax_error
from standins.nebula.syntax import (
    Attr,
    Binary,
    Call,
    Column,
    Comprehension,
    Const,
    Expr,
    Items,
    Name,
    Param,
    Ref,
    Sub,
    Unary,
    Yield,
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Reserved words cannot be bare identifiers (`vertex` and `edge` are also expressions, see `_word`).
RESERVED = _words(
    """
    ACROSS ADD ALTER AND ANTI AS ASC ASCENDING BALANCE BOOL BY CASE CHANGE COMPACT CREATE DATE DATETIME DELETE
    DESC DESCENDING DESCRIBE DISTINCT DOUBLE DOWNLOAD DROP DURATION EDGE EDGES EXISTS EXPLAIN FALSE FETCH FIND
    FIXED_STRING FLOAT FLUSH FROM GEOGRAPHY GET GO GRANT IF IGNORE_EXISTED_INDEX IN INDEX INDEXES INGEST INNER
    INSERT INT INT16 INT32 INT64 INT8 INTERSECT IS JOIN LEFT LIST LOOKUP MAP MATCH MINUS NO NOT NULL OF ON OR
    ORDER OUTER OVER OVERWRITE PATH PROP REBUILD RECOVER REMOVE RETURN REVERSELY REVOKE RIGHT SEMI SET SHOW STEP
    STEPS STOP STRING SUBMIT TAG TAGS TIME TIMESTAMP TO TRUE UNION UNWIND UPDATE UPSERT UPTO USE VERTEX VERTICES
    WHEN WHERE WITH XOR YIELD _ID _TYPE _SRC _DST _RANK
    """
)
_COMPARISONS = ("==", "!=", "<>", "<", "<=", ">", ">=", "=~")
_PREDICATES = ("ALL", "ANY", "NONE", "SINGLE")
_MAX_INT = 2**63 - 1


class Cursor:
    """Tokens and a position in them, with the small steps every rule is made of."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.at = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def peek(self, ahead: int = 1) -> Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def fail(self) -> Exception:
        return syntax_error(self.token.text)

    def advance(self) -> Token:
        token = self.tokens[self.at]
        self.at += 1
        return token

    def is_op(self, text: str) -> bool:
        return self.token.kind == "op" and self.token.text == text

    def is_word(self, *words: str) -> bool:
        """Whether the next tokens are these keywords, in this order."""
        return all(self.peek(ahead).word == word for ahead, word in enumerate(words))

    def op(self, text: str) -> bool:
        if self.is_op(text):
            self.at += 1
            return True
        return False

    def word(self, *words: str) -> bool:
        if self.is_word(*words):
            self.at += len(words)
            return True
        return False

    def need_op(self, text: str) -> None:
        if not self.op(text):
            raise self.fail()

    def need_word(self, *words: str) -> None:
        for word in words:
            if not self.word(word):
                raise self.fail()

    def identifier(self) -> str:
        token = self.token
        if token.kind == "quoted" or (token.kind == "name" and token.word not in RESERVED):
            self.at += 1
            return str(token.value)
        raise self.fail()

    def integer(self) -> int:
        if self.token.kind != "int":
            raise self.fail()
        return int(str(self.advance().value))


class ExpressionParser(Cursor):
    def expression(self) -> Expr:
        left = self._xor()
        while self.word("OR"):
            left = Binary("OR", left, self._xor())
        return left

    def columns(self) -> Yield:
        """What follows YIELD or RETURN: `[DISTINCT] expr [AS name], …`."""
        distinct = self.word("DISTINCT")
        columns = [self._column()]
        while self.op(","):
            columns.append(self._column())
        return Yield(tuple(columns), distinct)

    def _column(self) -> Column:
        first = self.at
        of = self.expression()
        last = self.tokens[self.at - 1]
        written = self.text[self.tokens[first].start : last.start + len(last.text)]
        return Column(of, self.identifier() if self.word("AS") else written)

    def _xor(self) -> Expr:
        left = self._and()
        while self.word("XOR"):
            left = Binary("XOR", left, self._and())
        return left

    def _and(self) -> Expr:
        left = self._not()
        while self.word("AND"):
            left = Binary("AND", left, self._not())
        return left

    def _not(self) -> Expr:
        if self.word("NOT") or self.op("!"):
            return Unary("NOT", self._not())
        return self._comparison()

    def _comparison(self) -> Expr:
        left = self._additive()
        while True:
            token = self.token
            if token.kind == "op" and token.text in _COMPARISONS:
                self.at += 1
                left = Binary("!=" if token.text == "<>" else token.text, left, self._additive())
            elif self.word("IS", "NOT", "NULL"):
                left = Unary("IS NOT NULL", left)
            elif self.word("IS", "NULL"):
                left = Unary("IS NULL", left)
            elif operator := self._wordy():
                left = Binary(operator, left, self._additive())
            else:
                return left

    def _wordy(self) -> str | None:
        negated = self.is_word("NOT") and self.peek().word in ("IN", "CONTAINS", "STARTS", "ENDS")
        start = self.at
        if negated:
            self.at += 1
        for words in (("IN",), ("CONTAINS",), ("STARTS", "WITH"), ("ENDS", "WITH")):
            if self.word(*words):
                return ("NOT " if negated else "") + " ".join(words)
        self.at = start
        return None

    def _additive(self) -> Expr:
        left = self._multiplicative()
        while self.token.kind == "op" and self.token.text in ("+", "-"):
            operator = self.advance().text
            left = Binary(operator, left, self._multiplicative())
        return left

    def _multiplicative(self) -> Expr:
        left = self._unary()
        while self.token.kind == "op" and self.token.text in ("*", "/", "%"):
            operator = self.advance().text
            left = Binary(operator, left, self._unary())
        return left

    def _unary(self) -> Expr:
        if self.op("-"):
            return Const(-_number(self.advance())) if self.token.kind in ("int", "float") else Unary("-", self._unary())
        return self._postfix()

    def _postfix(self) -> Expr:
        of = self._primary()
        while True:
            if self.op("."):
                of = Attr(of, self._property())
            elif self.op("["):
                of = Sub(of, self.expression())
                self.need_op("]")
            else:
                return of

    def _property(self) -> str:
        token = self.token
        if token.kind == "quoted" or (token.kind == "name" and token.word not in RESERVED):
            self.at += 1
            return str(token.value)
        raise self.fail()

    def _primary(self) -> Expr:
        token = self.token
        if token.kind == "string":
            return Const(self.advance().value)
        if token.kind in ("int", "float"):
            if token.kind == "int" and int(str(token.value)) > _MAX_INT:
                raise syntax_error(token.text, "Out of range:")
            return Const(self.advance().value)
        if token.kind == "ref":
            self.at += 1
            return Ref(token.text) if token.text in ("$$", "$^", "$-") else Param(token.text[1:])
        if self.op("("):
            inner = self.expression()
            self.need_op(")")
            return inner
        if self.is_op("["):
            return self._list()
        if token.kind == "quoted":
            return Name(self.identifier())
        return self._word(token)

    def _word(self, token: Token) -> Expr:
        word = token.word
        constants = {"TRUE": True, "FALSE": False, "NULL": None, "__NULL__": None}
        if word in constants:
            self.at += 1
            return Const(constants[word])
        if word in _PREDICATES and self.peek().text == "(":
            return self._predicate()
        if word in ("VERTEX", "EDGE", "VERTICES", "EDGES", "PATH"):
            self.at += 1
            return Name(word.lower())
        if token.kind != "name":
            raise self.fail()
        if self.peek().kind == "op" and self.peek().text == "(":
            return self._call()
        return Name(self.identifier())

    def _call(self) -> Expr:
        name = self.advance().text.lower()
        self.need_op("(")
        if self.op("*"):
            self.need_op(")")
            return Call(name, (), star=True)
        distinct = self.word("DISTINCT")
        args: list[Expr] = []
        if not self.is_op(")"):
            args.append(self.expression())
            while self.op(","):
                args.append(self.expression())
        self.need_op(")")
        return Call(name, tuple(args), distinct)

    def _predicate(self) -> Expr:
        kind = self.advance().word.lower()
        self.need_op("(")
        variable = self.identifier()
        self.need_word("IN")
        source = self.expression()
        self.need_word("WHERE")
        test = self.expression()
        self.need_op(")")
        return Comprehension(kind, variable, source, test, None)

    def _list(self) -> Expr:
        self.need_op("[")
        if self.peek().word == "IN" and self.token.kind in ("name", "quoted"):
            return self._comprehension()
        items: list[Expr] = []
        if not self.is_op("]"):
            items.append(self.expression())
            while self.op(","):
                items.append(self.expression())
        self.need_op("]")
        return Items(tuple(items))

    def _comprehension(self) -> Expr:
        variable = self.identifier()
        self.need_word("IN")
        source = self._additive()
        test = self.expression() if self.word("WHERE") else None
        result = self.expression() if self.op("|") else None
        self.need_op("]")
        if test is None and result is None:
            raise not_understood("a list that only tests membership")
        return Comprehension("list", variable, source, test, result)

    def literal_or_expression(self) -> Expr:
        """A property value of INSERT: mostly one literal, so that case takes one step."""
        token, following = self.token, self.peek()
        if following.kind == "op" and following.text in (",", ")"):
            if token.kind == "string":
                self.at += 1
                return Const(token.value)
            if token.word == "NULL":
                self.at += 1
                return Const(None)
        return self.expression()


def _number(token: Token) -> int | float:
    assert isinstance(token.value, (int, float))
    return token.value
