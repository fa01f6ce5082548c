"""Which sources could matter at all: a look at their bytes, before anything is parsed or imported for it."""

from __future__ import annotations

from gradcheck_accum.sources import local_imports
from gradcheck_accum.sources.code_alone import code_alone

TYPE_CHECKING = False  # as in `typing`, which takes a third of a bare start of Python to load
if TYPE_CHECKING:
    import re

LARGEST_FILE = 4 * 1024 * 1024
"""Bytes above which a source is not analyzed, because it is generated."""

_BACKWARD = rb"backward(?:(?<=\bbackward)|(?<=\bmanual_backward))(?<!def backward)[\s\\]*\("
"""Begins with a plain word, because `re` is quick to look for those."""
_STEP = rb"\.[\s\\]*step(?:_\w+)?[\s\\]*\("
"""Also by a longer name: an optimizer of a project's own may do more (``optimizer.step_and_update_lr()``)."""
_TELLS_TO_STEP = rb"\b(?:update_grad|need_update)[\s\\]*=(?!=)"
"""An argument that makes the call that runs backward step as well (timm's scalers): both in one."""
_FROM = rb"from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(?:\(([^()]*)\)|([\w, \t]*))"
_IMPORT = rb"import[ \t]+(\w+)(?![\w.])"

_LOADERS = (b"DataLoader", b"dataloader", b"train_loader", b"data_loader", b"train_dl", b"in loader", b"(loader")
"""Signs of a loop over data that leaves both calls to functions of other modules."""


def may_train(source: bytes) -> bool:
    """Whether a source both calls ``backward`` and steps: without either there is no window to judge."""
    if (b"backward" not in source or b"step" not in source) and not _may_tell_to_step(source):
        return False
    import re  # most sources do not need it, and it takes a third of a bare start of Python

    return bool(re.search(_TELLS_TO_STEP, source)) or all(re.search(call, source) for call in (_BACKWARD, _STEP))


def _may_tell_to_step(source: bytes) -> bool:
    return b"update_grad" in source or b"need_update" in source


def may_train_with_others(source: bytes, path: str) -> bool:
    """Whether a source at ``path`` trains, alone or with modules next to it.

    Then it has the loop, or a class that may inherit it, and what it imports makes those of the two calls that it
    lacks.
    """
    if not path.endswith(".py"):
        return may_train(source)
    tells = _may_tell_to_step(source)
    if not tells and b"backward" not in source and not _has_a_loop_for_others(source):
        return False
    import re

    if tells and re.search(_TELLS_TO_STEP, code_alone(source)):
        return True

    missing = _missing(source)
    if missing and not _may_delegate(source, len(missing)):
        return False
    code = code_alone(source)
    missing = _missing(code)
    if not missing:
        return True
    # Who calls backward elsewhere may step wherever that is.
    return _may_delegate(code, len(missing)) and _others_call(missing[0], code, path)


def _missing(source: bytes) -> list[re.Pattern[bytes]]:
    """Which of the two calls a source does not make, backward first."""
    import re

    return [call for call in map(re.compile, (_BACKWARD, _STEP)) if not call.search(source)]


def _may_delegate(source: bytes, calls: int) -> bool:
    """Whether a source may leave one or both of the calls to functions or classes of other modules."""
    return (
        (_has_a_loop_for_others(source) or (calls == 1 and b"backward" in source))
        and b"import" in source
        and any(word in source for word in (b"for ", b"while ", b"class "))
    )


def _has_a_loop_for_others(source: bytes) -> bool:
    if b"optim" not in source:
        return False
    if any(word in source for word in _LOADERS):
        return True
    if b"= next(" not in source or b"optim." not in source:
        return False
    import re

    return bool(re.search(rb"optim\.[A-Z]\w*\(", source))  # many modules have iterators, few make optimizers too


def _others_call(call: re.Pattern[bytes], source: bytes, path: str) -> bool:
    """Whether any function or class that a source imports makes a call."""
    import re

    # A module that imports the package that contains it uses dotted names.
    for match in re.finditer(_IMPORT, source):
        name = match[1].decode()
        begins = not source[source.rfind(b"\n", 0, match.start()) + 1 : match.start()].strip()
        if begins and name not in path and _has(call, path, 0, name, []):
            return True
    for dots, module, several, some in re.findall(_FROM, source):
        home = module.decode("ascii", "replace")
        found = (part.split()[:1] for part in (several or some).decode("ascii", "replace").split(","))
        names = [name for part in found for name in part]
        if home and _has(call, path, len(dots), home, names):
            return True
        if any(_has(call, path, len(dots), f"{home}.{name}" if home else name, []) for name in names):
            return True
    return False


def _has(call: re.Pattern[bytes], path: str, level: int, module: str, names: list[str]) -> bool:
    return local_imports.is_called(call, path, level, module, names, local_imports.read)
