"""Atomic writing of files."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

_KEPT_OF_NAME = 50
"""Characters of at most four bytes each, which leaves room for a suffix in a name of 255 bytes."""


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at ``path``, or leave it unchanged if that fails: no reader ever sees half of it.

    A link is followed, and an existing file keeps its permissions and, if permitted, its owner. Raises OSError, also if
    the target is not a regular file: replacing a device or pipe would remove it.
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
    """Raise the OSError that `write_atomically` would, as far as it can be predicted before writing."""
    handle, name = _new_beside(_target_of(path))
    os.close(handle)
    os.unlink(name)


def _target_of(path: Path) -> Path:
    target = Path(os.path.realpath(path))  # circular links lead nowhere, and are replaced themselves
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return target


def _new_beside(target: Path) -> tuple[int, str]:
    """A new open file in the directory of ``target``, and its name, short enough even if the target's is long."""
    import tempfile  # not needed by most runs

    return tempfile.mkstemp(prefix=f".{target.name[:_KEPT_OF_NAME]}.", dir=target.parent)
