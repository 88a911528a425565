"""The documents under test: their code runs, their links lead somewhere, their commands exist.

A block fenced as ```` ```python run ```` is run. All of one document run in one process, one after
another, as a reader would paste them; a traceback has the document's own line numbers.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

LINK = re.compile(r"""\]\(([^)\s]+)[^)]*\)|(?:src|href|srcset)=["']([^"'\s]+)""")
ELSEWHERE = re.compile(r"[a-z]+:", re.IGNORECASE)
COMMAND = re.compile(r"(?:\$ )?(?:[\w./-]*/)?surefoot (?P<words>[^#]+)")
WORD = re.compile(r"[a-z][a-z-]*")
PIPED_INTO = {"grep", "head", "jq", "less", "tail"}


@dataclass(frozen=True)
class Block:
    """A fenced block: what stands behind the fence, its lines, and the number of the first."""

    info: str
    lines: tuple[str, ...]
    first: int


def split(text: str) -> tuple[list[Block], str]:
    """Return the fenced blocks of a document, and the document without them, line for line."""
    blocks, prose = [], []
    fence, info, start, inside = "", "", 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        opened = re.match(r"\s*(```+|~~~+)\s*(.*)", line)
        if fence:
            if line.strip() == fence:
                blocks.append(Block(info, tuple(inside), start))
                fence = ""
            else:
                inside.append(line)
            prose.append("")
        elif opened:
            fence, info, start, inside = opened[1], opened[2].strip(), number + 1, []
            prose.append("")
        else:
            prose.append(line)
    assert not fence, f"a block opened at line {start - 1} is never closed"
    return blocks, "\n".join(prose)


def name(path: Path) -> str:
    """Return the path under the root."""
    return path.relative_to(ROOT).as_posix()


def runnable(path: Path) -> list[Block]:
    """Return the blocks of a document that are to be run."""
    return [block for block in split(path.read_text(encoding="utf-8"))[0] if block.info == "python run"]


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if runnable(path)], ids=name)
def test_code_in_documents_runs(path: Path, tmp_path: Path) -> None:
    """Every block marked to be run does, in the order of the document."""
    lines: list[str] = []
    for block in runnable(path):
        lines += [""] * (block.first - 1 - len(lines)) + list(block.lines)
    script = tmp_path / f"{path.stem}.py"
    script.write_text("\n".join(lines), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def anchors(path: Path) -> set[str]:
    """Return what a link may name behind `#`: the headings, as a Markdown page on the web spells them."""
    headings = re.findall(r"^#+ +(.+?)\s*$", split(path.read_text(encoding="utf-8"))[1], re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(path: Path) -> Iterator[str]:
    """Yield each relative link of a document whose file or heading isn't there."""
    for match in LINK.finditer(split(path.read_text(encoding="utf-8"))[1]):
        link = match[1] or match[2]
        if ELSEWHERE.match(link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file) if file else path
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link of a document names a file that is there, and a heading in it."""
    assert list(dead_links(path)) == []


def command_lines(text: str) -> list[str]:
    """Return what follows `surefoot` wherever a line of a block, or a code span, begins with it."""
    blocks, prose = split(text)
    code = [line.strip() for block in blocks for line in block.lines] + re.findall(r"`([^`]+)`", prose)
    return [match["words"] for line in code if (match := COMMAND.match(line))]


def unknown(words: str, app: click.Group) -> list[str]:
    """Return the commands of a line that don't exist; `a | b` are alternatives, or a pipe."""
    first, *others = [part.split() for part in words.split(" | ")]
    group = app
    for word in first:
        if not WORD.fullmatch(word):
            break
        command = group.get_command(click.Context(group), word)
        if command is None:
            return [word]
        if not isinstance(command, click.Group):
            break
        group = command
    return [
        other[0]
        for other in others
        if other and other[0] not in PIPED_INTO and group.get_command(click.Context(group), other[0]) is None
    ]


def test_commands_in_the_readme_exist() -> None:
    """Every command that README.md tells a reader to type is one."""
    app = import_module("surefoot.cli.main").main
    assert isinstance(app, click.Group)
    lines = command_lines((ROOT / "README.md").read_text(encoding="utf-8"))
    assert lines, "README.md shows no command"
    assert {line: missing for line in lines if (missing := unknown(line, app))} == {}


def test_what_a_command_line_is() -> None:
    """Alternatives are looked up beside each other, a pipe is not a command, an option ends the name."""
    app = click.Group("app", commands=[click.Command("status"), click.Group("ckpt", [click.Command("ls")])])
    block = (
        "$ surefoot ckpt ls | verify\nsurefoot status --json | jq .\n.venv/bin/surefoot halt\nsurefoot --help\n"
    )
    text = f"`surefoot status RUN`\n```\n{block}import surefoot\n```\nsurefoot is no command here\n"
    found = {line: unknown(line, app) for line in command_lines(text)}
    assert [missing for missing in found.values() if missing] == [["verify"], ["halt"]]
    assert len(found) == 5
