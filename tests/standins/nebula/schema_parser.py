"""Grammar of the statements that define or show spaces, tags, edge types and indexes."""

from __future__ import annotations

from standins.nebula.expressions import Cursor
from standins.nebula.lexer import not_understood
from standins.nebula.syntax import (
    AlterSchema,
    CreateIndex,
    CreateSchema,
    CreateSpace,
    Describe,
    DropSpace,
    Prop,
    RebuildIndex,
    Show,
    Statement,
)

_KINDS = {"STRING": "string", "INT": "int64", "INT64": "int64", "DOUBLE": "double", "FLOAT": "float", "BOOL": "bool"}


class SchemaRules(Cursor):
    def create(self) -> Statement:
        self.need_word("CREATE")
        if self.word("SPACE"):
            return self._create_space()
        if self.word("TAG", "INDEX"):
            return self._create_index()
        edge = self.word("EDGE")
        if not edge and not self.word("TAG"):
            raise not_understood(f"CREATE {self.token.text}")
        unless_there = self._if_not_exists()
        name = self.identifier()
        return CreateSchema(edge, name, unless_there, self._props())

    def alter(self) -> Statement:
        self.need_word("ALTER")
        edge = self.word("EDGE")
        if not edge:
            self.need_word("TAG")
        name = self.identifier()
        if not self.word("ADD"):
            raise not_understood("ALTER without ADD")
        return AlterSchema(edge, name, self._props())

    def drop(self) -> Statement:
        self.need_word("DROP")
        if not self.word("SPACE"):
            raise not_understood(f"DROP {self.token.text}")
        if_exists = self.word("IF", "EXISTS")
        return DropSpace(self.identifier(), if_exists)

    def clear(self) -> Statement:
        self.need_word("CLEAR", "SPACE")
        if_exists = self.word("IF", "EXISTS")
        return DropSpace(self.identifier(), if_exists, clear=True)

    def describe(self) -> Statement:
        if not self.word("DESCRIBE"):
            self.need_word("DESC")
        for what in ("TAG", "EDGE", "SPACE"):
            if self.word(what):
                return Describe(what, self.identifier())
        raise not_understood(f"DESCRIBE {self.token.text}")

    def show(self) -> Statement:
        self.need_word("SHOW")
        if self.word("TAG", "INDEXES"):
            return Show("TAG INDEXES")
        if self.word("JOB"):
            return Show("JOB", self.integer())
        for what in ("SPACES", "TAGS", "EDGES", "STATS"):
            if self.word(what):
                return Show(what)
        raise not_understood(f"SHOW {self.token.text}")

    def rebuild(self) -> Statement:
        self.need_word("REBUILD", "TAG", "INDEX")
        return RebuildIndex(self.identifier())

    def _if_not_exists(self) -> bool:
        return self.word("IF", "NOT", "EXISTS")

    def _create_space(self) -> Statement:
        unless_there = self._if_not_exists()
        name = self.identifier()
        options: dict[str, object] = {}
        self.need_op("(")
        while True:
            option = self.identifier().lower()
            self.need_op("=")
            options[option] = self._vid_type() if option == "vid_type" else self.integer()
            if not self.op(","):
                break
        self.need_op(")")
        return CreateSpace(name, unless_there, options)

    def _vid_type(self) -> object:
        if self.word("INT64") or self.word("INT"):
            return "int64"
        self.need_word("FIXED_STRING")
        return self._length()

    def _length(self) -> int:
        self.need_op("(")
        length = self.integer()
        self.need_op(")")
        return length

    def _create_index(self) -> Statement:
        unless_there = self._if_not_exists()
        name = self.identifier()
        self.need_word("ON")
        tag = self.identifier()
        self.need_op("(")
        fields: list[tuple[str, int | None]] = []
        while True:
            field = self.identifier()
            fields.append((field, self._length() if self.is_op("(") else None))
            if not self.op(","):
                break
        self.need_op(")")
        return CreateIndex(name, tag, unless_there, tuple(fields))

    def _props(self) -> tuple[Prop, ...]:
        self.need_op("(")
        props: list[Prop] = []
        while not self.is_op(")"):
            props.append(self._prop())
            if not self.op(","):
                break
        self.need_op(")")
        return tuple(props)

    def _prop(self) -> Prop:
        name = self.identifier()
        word = self.token.word
        if word == "FIXED_STRING":
            self.advance()
            kind = f"fixed_string({self._length()})"
        elif word in _KINDS:
            self.advance()
            kind = _KINDS[word]
        else:
            raise not_understood(f"property type {self.token.text}")
        nullable = True
        if self.word("NOT", "NULL"):
            nullable = False
        else:
            self.word("NULL")
        if not self.word("DEFAULT"):
            return Prop(name, kind, nullable)
        token = self.advance()
        value: object = token.value
        if token.word in ("TRUE", "FALSE"):
            value = token.word == "TRUE"
        elif token.kind not in ("int", "float", "string"):
            raise not_understood(f"default {token.text}")
        return Prop(name, kind, nullable, value, has_default=True)
