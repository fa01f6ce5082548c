"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

_KEPT_OF_NAME = 50
"""Characters of four bytes at most, so that there is room for more in a name of 255 bytes."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at ``path``, and nothing where that fails: no reader ever sees half of it.

    A link is followed, and an existing file keeps its permissions and, as far as that is allowed, its owner. Raises
    OSError, also where the target is not a regular file: a device or pipe would be gone once a file has its name.
    """
    target = _target_of(path)
    handle, name = _new_beside(target)
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


def try_to_replace(path: Path) -> None:
    """Raise the OSError that `write_atomically` would, as far as it can be known before there is anything to write."""
    handle, name = _new_beside(_target_of(path))
    os.close(handle)
    os.unlink(name)


def _target_of(path: Path) -> Path:
    target = Path(os.path.realpath(path))  # links in a circle lead nowhere, and are replaced themselves
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return target


def _new_beside(target: Path) -> tuple[int, str]:
    """A new file in the directory of ``target``, opened, and its name: short enough wherever the target's own is."""
    import tempfile  # not needed by most runs

    return tempfile.mkstemp(prefix=f".{target.name[:_KEPT_OF_NAME]}.", dir=target.parent)
