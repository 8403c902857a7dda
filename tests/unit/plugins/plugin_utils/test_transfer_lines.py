"""What a user sees of a copy."""

from __future__ import annotations

from ansible_collections.dgxspark.serving.plugins.plugin_utils._transfer_lines import (
    Transfers,
    duration,
    would_be_moved,
)


def state(phase: str, done: int, total: int, time: float) -> dict[str, object]:
    return {"phase": phase, "done": done, "total": total, "time": time}


def test_bytes_rate_and_time_left_now_and_then() -> None:
    transfers = Transfers("spark-b", 100.0)
    assert transfers.lines({"weights": {}}, 100.0) == []
    assert transfers.lines({"weights": state("weights", 0, 10**10, 101.0)}, 101.0) == [
        "[spark-b +1 s] weights 0.0 MB of 10.00 GB"
    ]
    assert transfers.lines({"weights": state("weights", 10**9, 10**10, 103.0)}, 103.0) == []
    assert transfers.lines({"weights": state("weights", 4 * 10**9, 10**10, 121.0)}, 121.0) == [
        "[spark-b +21 s] weights 4.00 GB of 10.00 GB, 200.0 MB/s, 30 s left"
    ]
    # A new phase is said at once.
    (line,) = transfers.lines({"weights": state("comparing checksums", 0, 0, 122.0)}, 122.0)
    assert line == "[spark-b +22 s] weights: comparing checksums"


def test_what_has_arrived_is_still_being_unpacked() -> None:
    (line,) = Transfers("h", 0.0).lines({"image": state("image", 2 * 10**9, 10**9, 5.0)}, 5.0)
    assert line == "[h +5 s] image: all of 2.00 GB has arrived and is being worked into the host"


def test_times() -> None:
    assert [duration(seconds) for seconds in (5.4, 65, 3700)] == ["5 s", "1 min 5 s", "1 h 1 min"]


def test_check_mode_says_what_would_be_moved() -> None:
    results = {
        "image": {"changed": True, "bytes_received": 2_670_000_000},
        "weights": {"changed": False, "bytes_to_copy": 0},
    }
    assert would_be_moved("h", results) == ["h: image: 2.67 GB would be moved", "h: weights: is there already"]
    assert would_be_moved("h", {"image": {"failed": True}}) == []
    assert would_be_moved("h", {"weights": {"changed": True}}) == [
        "h: weights: would be made ready, nothing would be moved"
    ]
