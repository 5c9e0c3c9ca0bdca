"""The commands that README and docs show: found in shell blocks, indented blocks and inline code."""

import re
import shlex
from dataclasses import dataclass, field

from bsvi.cli import VERBS

STARTS = ("bsvi", "./run", "python", "torchrun", "pytest", "pip", "mkdir", "tar", ".cache/adapters/bin/python")
FENCE = r"^```(\S*)\n(.*?)^```"
WITHOUT_ARGUMENT = ("-", "|", "...")  # what follows the verb where prose only mentions it: `bsvi gap --save`


@dataclass(frozen=True)
class Command:
    """One command of a page: its words, its variables, and whether it is complete or only mentioned."""

    line: str = field(compare=False)
    words: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def verb(self) -> str:
        """Of bsvi; empty for other programs."""
        return self.words[1] if self.words[0] == "bsvi" and len(self.words) > 1 else ""

    @property
    def mentioned(self) -> bool:
        """Whether the words that a verb needs are left out."""
        start = self.words.index("bsvi") if "bsvi" in self.words else None
        if start is None or self.words[start + 1 :] == ("--help",):
            return False
        rest = self.words[start + 2 :]
        return not rest or (rest[0].startswith(WITHOUT_ARGUMENT) and rest[0] != "--resume") or "|" in rest


def find_commands(page):
    """The commands of a page, each once."""
    text = page.read_text().replace("\\\n", " ")
    lines = [line for kind, block in fences(text) if kind == "sh" for line in block.splitlines()]
    prose = re.sub(FENCE, "", text, flags=re.DOTALL | re.MULTILINE)
    lines += re.findall(r"^ {4}(\S.*)$", prose, flags=re.MULTILINE)
    lines += [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose.replace(r"\|", "|"))]
    found = dict.fromkeys(command for line in lines for command in split(line))
    return list(found)


def split(line):
    """The commands of one line: without comment, notation such as [--flag] and RUN..., and the ./run before a program."""
    plain = re.sub(r"(?<=\w)\.\.\.|[\[\]](?=\s|$|--)", "", line)
    try:
        words = shlex.split(plain, comments=True)
    except ValueError:  # an apostrophe: prose
        return
    for part in " ".join(map(shlex.quote, words)).split(" '&&' "):
        words = shlex.split(part)
        variables = []
        while words and re.fullmatch(r"[A-Z_]+=\S+", words[0]):
            variables.append(tuple(words.pop(0).split("=", 1)))
        if len(words) > 1 and words[0] == "./run" and words[1] in STARTS:
            words = words[1:]
        if not words or words[0] not in STARTS or (len(words) == 1 and words[0] != "./run"):
            continue
        if words[0] == "bsvi" and words[1] not in VERBS and not words[1].startswith("-"):
            continue
        yield Command(line, tuple(words), tuple(variables))


def fences(text):
    """(language, block) of every fenced block."""
    return re.findall(FENCE, text, flags=re.DOTALL | re.MULTILINE)
