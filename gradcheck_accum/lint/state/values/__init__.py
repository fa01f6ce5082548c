"""What the variables of a training loop may hold while its skeleton is interpreted.

Plain Python values (str, bool, None, list, tuple, dict) stand for themselves; numbers carry where they come from.
Everything that cannot be known is a `Symbol`, which remembers its name so that the same unknown is the same everywhere.
"""

from __future__ import annotations

from gradcheck_accum.lint.state.values.contents import *  # noqa: F403
from gradcheck_accum.lint.state.values.data import *  # noqa: F403
from gradcheck_accum.lint.state.values.definitions import *  # noqa: F403
from gradcheck_accum.lint.state.values.numbers import *  # noqa: F403
from gradcheck_accum.lint.state.values.parameters import *  # noqa: F403
from gradcheck_accum.lint.state.values.symbols import *  # noqa: F403
from gradcheck_accum.lint.state.values.tensors import *  # noqa: F403
from gradcheck_accum.lint.state.values.training import *  # noqa: F403
