"""The signs and words between expressions, each with how it is written."""

from __future__ import annotations

from enum import Enum


class Operator(Enum):
    """What stands between two values that are computed with."""

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
    """What stands before one value."""

    NOT = "not"
    USUB = "-"
    UADD = "+"
    INVERT = "~"


class Comparison(Enum):
    """What stands between two values that are compared."""

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
