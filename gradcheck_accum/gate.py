"""Which sources could matter at all: a look at their bytes, before anything is parsed or imported for it."""

from __future__ import annotations

from gradcheck_accum import neighbours

LARGEST_FILE = 4 * 1024 * 1024
"""Bytes above which a source is not analysed: no person wrote it."""

_BACKWARD = rb"backward[\s\\]*\("
_STEP = rb"\.[\s\\]*step[\s\\]*\("
_FROM = rb"^[ \t]*from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+\(?\s*([\w, \t]*)"
_IMPORT = rb"^[ \t]*import[ \t]+(\w+)(?![\w.])"

_LOADERS = (b"DataLoader", b"dataloader", b"train_loader", b"data_loader", b"train_dl", b"in loader", b"(loader")
"""How a loop over data that leaves both calls to functions of other modules may be known."""


def may_train(source: bytes) -> bool:
    """Whether a source both calls ``backward`` and steps: without either there is no window to judge."""
    if b"backward" not in source or b"step" not in source:
        return False
    import re  # most sources are told apart without, and it costs a third of a bare start of Python

    return all(re.search(call, source) for call in (_BACKWARD, _STEP))


def may_train_with_others(source: bytes, path: str) -> bool:
    """Whether a source at ``path`` trains, alone or with modules beside it.

    It then has the loop, or a class that may inherit it, and what it lacks of both calls is done by what it imports.
    """
    if may_train(source):
        return True
    delegates = b"optim" in source and any(word in source for word in _LOADERS)
    if not (delegates or b"backward" in source) or b"import" not in source:
        return False
    if not any(word in source for word in (b"for ", b"while ", b"class ")):
        return False
    import re

    missing = [call for call in (_BACKWARD, _STEP) if not re.search(call, source)]
    if len(missing) == 2 and not delegates:
        return False
    call = missing[0]  # who calls backward elsewhere may step wherever that is
    whole_modules = set(re.findall(_IMPORT, source, re.MULTILINE))
    # Who imports the very package that it stands in calls it by dotted names.
    imports = [(b"", b"", name) for name in whole_modules if name.decode() not in path]
    for dots, name, imported in [*imports, *re.findall(_FROM, source, re.MULTILINE)]:
        names = [part.partition(b" as ")[0].strip().decode("ascii", "replace") for part in imported.split(b",")]
        module = name.decode("ascii", "replace")
        whole = [(module, names)] if module else []
        for one, wanted in [*whole, *((f"{module}.{n}" if module else n, []) for n in names if n)]:
            if _has(call, path, len(dots), one, wanted):
                return True
    return False


def _has(call: bytes, path: str, level: int, module: str, names: list[str]) -> bool:
    """Whether what a module beside ``path`` defines under these names makes a call; all of it without names."""
    import re

    for place in neighbours.places(path, level, module):
        content = neighbours.read(place)
        if content is not None:
            said = b"backward" if call is _BACKWARD else b"step"
            if said not in content:
                return False
            return bool(re.search(call, neighbours.definitions(content, names) if names else content))
    return False
