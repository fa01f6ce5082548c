"""A training script as the interpreter reads it: a small syntax of our own, whose nodes know their places."""

from __future__ import annotations

from gradcheck_accum.lint.syntax.node import NOWHERE as NOWHERE
from gradcheck_accum.lint.syntax.node import Node as Node
from gradcheck_accum.lint.syntax.nodes import *  # noqa: F403
from gradcheck_accum.lint.syntax.operators import Comparison as Comparison
from gradcheck_accum.lint.syntax.operators import Junction as Junction
from gradcheck_accum.lint.syntax.operators import Operator as Operator
from gradcheck_accum.lint.syntax.operators import UnaryOperator as UnaryOperator
from gradcheck_accum.lint.syntax.parsing import CannotParse as CannotParse
from gradcheck_accum.lint.syntax.parsing import NestedTooDeeply as NestedTooDeeply
from gradcheck_accum.lint.syntax.parsing import check as check
from gradcheck_accum.lint.syntax.parsing import going_down as going_down
from gradcheck_accum.lint.syntax.parsing import parse as parse
from gradcheck_accum.lint.syntax.text import call_name as call_name
from gradcheck_accum.lint.syntax.text import last_name as last_name
from gradcheck_accum.lint.syntax.text import text_of as text_of
from gradcheck_accum.lint.syntax.walking import children as children
from gradcheck_accum.lint.syntax.walking import statement_lines as statement_lines
from gradcheck_accum.lint.syntax.walking import walk as walk
