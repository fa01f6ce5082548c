"""The signs and words between expressions, each with how it is written."""

from __future__ import annotations

from enum import Enum


class Operator(Enum):
    """Binary arithmetic operators."""

    ADD = "+"
    SUB = "-"
    MULT = "*"
    MATMULT = "@"
    DIV = "/"
    MOD = "%"
    FLOORDIV = "//"
    POW = "**"
    LSHIFT = "<<"
    RSHIFT = ">>"
    BITOR = "|"
    BITXOR = "^"
    BITAND = "&"


class UnaryOperator(Enum):
    """Unary operators."""

    NOT = "not"
    USUB = "-"
    UADD = "+"
    INVERT = "~"


class Comparison(Enum):
    """Comparison operators."""

    EQ = "=="
    NOTEQ = "!="
    LT = "<"
    LTE = "<="
    GT = ">"
    GTE = ">="
    IS = "is"
    ISNOT = "is not"
    IN = "in"
    NOTIN = "not in"


class Junction(Enum):
    """What joins conditions."""

    AND = "and"
    OR = "or"
