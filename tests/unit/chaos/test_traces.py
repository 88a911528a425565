"""Two runs are equal only if their traces are, to the last character."""

from __future__ import annotations

from pathlib import Path

from surefoot.chaos.traces import Tail, first_difference, read

CALM = """\
step 0 0 0x1.8p+2 5 7
step 0 1 0x1.9p+2 6 8
step 1 0 0x1.7p+2 1 2
step 1 1 0x1.6p+2 3 4
weights 2 0 abc
weights 2 1 abc
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_last_writing_counts(tmp_path: Path) -> None:
    """A turn that was done again with the same outcome in the end is equal, whatever it wrote before."""
    calm = read(write(tmp_path / "calm", CALM))
    wild = read(write(tmp_path / "wild", "step 1 0 0x1.0p+0 9 9\n" + CALM))
    assert wild["step", 1, 0] == ["0x1.0p+0 9 9", "0x1.7p+2 1 2"]
    assert first_difference(calm, wild) is None


def test_the_first_difference_is_named(tmp_path: Path) -> None:
    """Of several differences the one at the earliest step is told, with both sides."""
    calm = read(write(tmp_path / "calm", CALM))
    wild = read(write(tmp_path / "wild", CALM.replace("abc", "abd").replace("0x1.6p+2 3 4", "0x1.6p+2 3 5")))
    difference = first_difference(calm, wild)
    assert difference is not None
    assert difference.startswith("step 1, rank 1: ")
    assert "0x1.6p+2 3 4" in difference
    assert "0x1.6p+2 3 5" in difference


def test_what_is_missing_differs(tmp_path: Path) -> None:
    """A line that only one of the two has is a difference, whichever it is."""
    calm = read(write(tmp_path / "calm", CALM))
    less = read(write(tmp_path / "less", CALM.rsplit("weights", 1)[0]))
    for one, other in ((calm, less), (less, calm)):
        difference = first_difference(one, other)
        assert difference is not None
        assert difference.startswith("weights 2, rank 1: ")
        assert "nothing" in difference


def test_a_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    """What a writer has not ended yet is left for the next look."""
    path = tmp_path / "trace"
    tail = Tail(path)
    assert tail.lines() == []
    write(path, "step 0 0 a\nstep 1")
    assert tail.lines() == ["step 0 0 a"]
    assert tail.lines() == []
    with path.open("a") as file:
        file.write(" 0 b\n")
    assert tail.lines() == ["step 1 0 b"]
