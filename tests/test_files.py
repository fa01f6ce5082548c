"""Files that are replaced: whole or not at all, and only where a file is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gradcheck_accum.files import try_to_replace, write_atomically


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_pipe_or_device_is_never_replaced(is_linked: bool, tmp_path: Path) -> None:
    """Whoever may, as root, would else find a file in the place of /dev/zero."""
    pipe, path = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    if is_linked:
        path.symlink_to(pipe)
    for replace in (try_to_replace, lambda path: write_atomically(path, b"text")):
        with pytest.raises(OSError, match="not a regular file"):
            replace(path if is_linked else pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert {p.name for p in tmp_path.iterdir()} == {"pipe", *(["link"] if is_linked else [])}


def test_a_link_is_followed_and_a_long_name_is_none_too_long(tmp_path: Path) -> None:
    target, link = tmp_path / ("n" * 250 + ".html"), tmp_path / "link"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert (target.read_text(), stat.S_IMODE(target.stat().st_mode), link.is_symlink()) == ("new", 0o640, True)
