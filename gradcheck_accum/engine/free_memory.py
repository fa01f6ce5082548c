"""How much memory is free, on the host or on a device."""

from __future__ import annotations

from pathlib import Path

import torch

_GROUP = Path("/sys/fs/cgroup")


def free_memory(device: torch.device) -> int | None:
    """The bytes that a process can still allocate on a device; None if the system does not report them.

    Untested on CUDA.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    if device.type != "cpu":
        return None
    known = [size for size in (_of_host(), _of_group()) if size is not None]
    return min(known, default=None)


def _of_host() -> int | None:
    """What Linux counts as available: free memory, and caches that can be dropped."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    available = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return None if available is None else int(available.split()[1]) * 1024


def _of_group() -> int | None:
    """What remains below the memory limit of a container (a control group)."""
    try:
        most = (_GROUP / "memory.max").read_text(encoding="ascii").strip()
        used = int((_GROUP / "memory.current").read_text(encoding="ascii"))
        stat = (_GROUP / "memory.stat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    if most == "max":
        return None
    cached = int(stat[stat.index("inactive_file") + 1]) if "inactive_file" in stat else 0
    return max(0, int(most) - used + cached)
