"""Comments that switch findings off: ``# gradcheck-accum: ignore[GA101]`` and ``# noqa: GA101``, or either bare."""

from __future__ import annotations

import io
import re
import tokenize

_IGNORE = re.compile(r"gradcheck-accum:\s*ignore(?:\[([^\]]*)\])?", re.IGNORECASE)
_NOQA = re.compile(r"#\s*noqa(?::\s*([A-Z]+[0-9]+(?:[,\s]+[A-Z]+[0-9]+)*))?", re.IGNORECASE)

EVERYTHING = frozenset({"*"})


def suppressions(source: str) -> dict[int, frozenset[str]]:
    """The codes that comments switch off, by line; `EVERYTHING` for a comment that names none."""
    if "noqa" not in source.lower() and "gradcheck-accum" not in source.lower():
        return {}
    found: dict[int, frozenset[str]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type != tokenize.COMMENT:
                continue
            match = _IGNORE.search(token.string) or _NOQA.search(token.string)
            if match:
                names = match.group(1)
                codes = frozenset(re.split(r"[,\s]+", names.strip().upper())) if names else EVERYTHING
                found[token.start[0]] = found.get(token.start[0], frozenset()) | codes
    except (tokenize.TokenError, SyntaxError):
        return found
    return found


def is_suppressed(code: str, name: str, first: int, last: int, comments: dict[int, frozenset[str]]) -> bool:
    """Whether a finding of ``code`` on lines ``first`` to ``last`` is switched off."""
    return any(
        {code, name.upper(), "*"} & comments.get(line, frozenset()) for line in range(first, max(first, last) + 1)
    )
