"""Stand-in of sglang.srt.utils."""

from __future__ import annotations


def kill_process_tree(_pid: int, include_parent: bool = True) -> None:
    """What the stand-in of the server starts ends with its container."""
