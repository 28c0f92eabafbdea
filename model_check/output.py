"""What TLC says, read line by line from its machine-readable output (`-tool`).

A message is enclosed in lines that carry its number and its severity; the numbers below are those of
TLC's `EC` class, the same from 2.15 on. Where a number is not known, a message's words decide.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from .values import Value, parse_value

_START = re.compile(r"@!@!@STARTMSG (-?\d+):(\d+) @!@!@")
_END = re.compile(r"@!@!@ENDMSG (-?\d+) @!@!@")
_COUNTS = re.compile(
    r"([\d,.]+) states generated.*?, ([\d,.]+) distinct states found.*?, ([\d,.]+) states left on queue"
)
#: of a simulation, which does not know what it has seen before
_RANDOM = re.compile(r"([\d,.]+) states generated.*?, -1 distinct states found")
_STATE = re.compile(r"(\d+): (?:<(.*)>|(.+))$")
_ACTION = re.compile(r"(?P<name>[\w!]+)(?:\((?P<args>.*)\))?(?: line (?P<where>.*))?$")
_VARIABLE = re.compile(r"^(?:/\\ )?([A-Za-z_]\w*) = ", re.MULTILINE)
_LOADING = ("Parsing file ", "Semantic processing of module ", "Warning: Please run the Java VM", "Picked up ")

_STATE_CODES = {2216, 2217, 2218}
_BACK_TO_STATE, _SUCCESS, _VERSION = 2122, 2193, 2262
_ERROR_SEVERITIES = {1, 2}
_KEPT_LINES = 60
#: what a specification of ours prints begins with this
SAYS = "PALIMPSEST "


class Kind(Enum):
    """How a run ended."""

    OK = "ok"
    INVARIANT = "invariant"
    ACTION_PROPERTY = "action property"
    TEMPORAL_PROPERTY = "temporal property"
    DEADLOCK = "deadlock"
    ASSUMPTION = "false assumption"
    EVALUATION = "evaluation error"
    PARSE = "parse error"
    CRASH = "crash"
    LIMIT = "time limit"
    #: TLC's distributed mode says that something is violated, and not what
    UNNAMED = "some violation"


#: a violation's message: its kind, and where it has it the violated property's name
_VIOLATIONS = (
    (Kind.INVARIANT, re.compile(r"Invariant (?P<name>.+?) is violated")),
    (Kind.ACTION_PROPERTY, re.compile(r"(?:Action property|Property) (?P<name>.+?) is violated", re.DOTALL)),
    (Kind.TEMPORAL_PROPERTY, re.compile(r"Temporal propert(?:y|ies)(?: (?P<name>\S+))? (?:was|were) violated")),
    (Kind.DEADLOCK, re.compile(r"Deadlock reached")),
    (Kind.ASSUMPTION, re.compile(r"Assumption (?P<name>.+?) is false", re.DOTALL)),
)
#: TLC's exit status where its words do not settle the kind
_KIND_OF_STATUS = {
    10: Kind.ASSUMPTION,
    11: Kind.DEADLOCK,
    12: Kind.INVARIANT,
    13: Kind.TEMPORAL_PROPERTY,
    **dict.fromkeys(range(70, 80), Kind.EVALUATION),
    **dict.fromkeys((150, 151, 152), Kind.PARSE),
}


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    generated: int = 0
    distinct: int = 0
    queue: int = 0


@dataclass(frozen=True)
class Step:
    """A state of a counterexample, and the action that led to it."""

    number: int
    action: str
    arguments: str
    where: str
    values: dict[str, Value]


@dataclass(frozen=True)
class Result:
    """What came out of a run."""

    kind: Kind
    name: str | None
    progress: Progress
    steps: tuple[Step, ...]
    back_to: int | None
    explanation: str
    lines: tuple[str, ...]
    seconds: float
    status: int
    #: what the specification itself printed
    said: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """`ok`, the name of the violated property, `Deadlock`, or what went wrong."""
        if self.kind is Kind.DEADLOCK:
            return "Deadlock"
        return self.kind.value if self.name is None or self.kind is Kind.ASSUMPTION else self.name


@dataclass
class Output:
    """What one run has said so far."""

    progress: Progress = Progress()
    kind: Kind | None = None
    name: str | None = None
    steps: list[Step] = field(default_factory=list)
    #: the number of the state that the behavior goes back to; that of the last one where it stutters
    back_to: int | None = None
    version: str = ""
    errors: list[str] = field(default_factory=list)
    #: the last lines outside of any message: what the parser, `PrintT` and a dying JVM say
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    #: what the specification itself printed, without the mark
    said: list[str] = field(default_factory=list)
    _simulates: bool = False
    _code: int | None = None
    _severity: int = 0
    _text: list[str] = field(default_factory=list)

    def feed(self, line: str) -> None:
        """Take one line."""
        line = line.rstrip("\r\n")
        if start := _START.fullmatch(line):
            self._close()
            self._code, self._severity = int(start[1]), int(start[2])
        elif _END.fullmatch(line):
            self._close()
        elif (said := line.strip('"')).startswith(SAYS):
            self.said.append(said.removeprefix(SAYS).replace('\\"', '"'))  # a printed string has its quotes escaped
        elif self._code is not None and not line.startswith(_LOADING):
            self._text.append(line)
        elif line.strip() and not line.startswith(_LOADING):
            self.lines.append(line)

    def _close(self) -> None:
        if self._code is not None:
            self._message(self._code, "\n".join(self._text).strip())
        self._code, self._severity, self._text = None, 0, []

    def _message(self, code: int, text: str) -> None:
        if counts := _COUNTS.search(text):
            self.progress = Progress(*(int(re.sub(r"\D", "", number)) for number in counts.groups()))
        elif random := _RANDOM.search(text):
            self.progress, self._simulates = Progress(int(re.sub(r"\D", "", random[1]))), True
        elif code in _STATE_CODES:
            self._state(text)
        elif code == _BACK_TO_STATE:
            self.back_to = int(number[0]) if (number := re.search(r"\d+", text)) else None
        elif code == _SUCCESS:
            self.kind = self.kind or Kind.OK
        elif code == _VERSION:
            self.version = text
        elif self._severity in _ERROR_SEVERITIES:
            self._error(text)

    def _state(self, text: str) -> None:
        head, _, rest = text.partition("\n")
        if (match := _STATE.match(head)) is None:
            return
        if match[3]:
            self.back_to = int(match[1]) - 1 if match[3].startswith("Stuttering") else int(match[1])
            return
        action = _ACTION.match(match[2])
        self.steps.append(
            Step(
                int(match[1]),
                "Init" if match[2] == "Initial predicate" else action["name"] if action else match[2],
                (action["args"] or "") if action else "",
                (action["where"] or "") if action else "",
                parse_state(rest),
            )
        )

    def _error(self, text: str) -> None:
        for kind, pattern in _VIOLATIONS:
            if self.kind in (None, Kind.OK) and (match := pattern.search(text)):
                self.kind, self.name = kind, match.groupdict().get("name")
                self._initial(text)
        self.errors.append(text)

    def _initial(self, text: str) -> None:
        _, marker, rest = text.partition("the initial state:\n")
        if marker:
            self.steps.append(Step(1, "Init", "", "", parse_state(rest)))

    def finish(self, status: int) -> None:
        """The process has ended with `status`."""
        self._close()
        if self.kind is Kind.OK and status != 0:
            self.kind = Kind.CRASH
        if self.kind is None and self._simulates and status == 0 and not self.errors:
            self.kind = Kind.OK
        if self.kind is None:
            self.kind = _KIND_OF_STATUS.get(status, Kind.CRASH)

    def explanation(self) -> str:
        """What TLC says about an error, without the counterexample."""
        return "\n".join([*self.errors, *self.lines]) if self.kind is not Kind.OK else ""


def parse_state(text: str) -> dict[str, Value]:
    """The variables of a state as TLC prints it."""
    marks = list(_VARIABLE.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return {mark[1]: parse_value(text[mark.end() : end]) for mark, end in zip(marks, ends, strict=True)}
