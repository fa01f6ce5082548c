"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at ``path``, and nothing where that fails: no reader ever sees half of it.

    A link is followed, and an existing file keeps its permissions and, as far as that is allowed, its owner. Raises
    OSError.
    """
    target = path.resolve()
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            import shutil  # not needed by most runs

            shutil.copymode(target, name)
            with contextlib.suppress(OSError, AttributeError):
                before = target.stat()
                os.chown(name, before.st_uid, before.st_gid)
        else:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
