"""A report as Markdown, of one screen: what a pull request's comment says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .evidence import Evidence, Report, Verdict
from .findings import Finding
from .properties import Proven

SIGNS = {Verdict.HOLDS: "✓", Verdict.FAILS: "✗", Verdict.SKIPPED: "○"}
_MOST_FINDINGS, _LONGEST = 5, 120


def markdown(report: Report, properties: Sequence[Proven], found: Sequence[Finding] = ()) -> str:
    """The comment."""
    return "\n".join((*_head(report), *_table(report.evidence), *_findings(found), *_foot(report, properties))) + "\n"


def headline(report: Report) -> str:
    """The verdict in a line."""
    failing = [each.kind for each in report.evidence if each.verdict is Verdict.FAILS]
    if failing:
        return f"✗ fails: {', '.join(failing)}"
    skipped = sum(each.verdict is Verdict.SKIPPED for each in report.evidence)
    if not report.ok:
        return "✗ nothing was shown"
    return "✓ everything holds" + (
        f", {skipped} of {len(report.evidence)} kinds of evidence skipped" if skipped else ""
    )


def lasted(seconds: float) -> str:
    """A duration for a reader."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _head(report: Report) -> Iterator[str]:
    yield f"### Palimpsest: {headline(report)}"
    yield ""


def _table(evidence: Sequence[Evidence]) -> Iterator[str]:
    yield "| | evidence | shows that | how much | took | |"
    yield "| --- | --- | --- | ---: | ---: | --- |"
    for each in evidence:
        cells = (each.what, f"{each.count:,} {each.unit}", lasted(each.seconds), each.says)
        yield f"| {SIGNS[each.verdict]} | `{each.kind}` | {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def _findings(found: Sequence[Finding]) -> Iterator[str]:
    if not found:
        return
    yield ""
    for each in found[:_MOST_FINDINGS]:
        failure = each.picture.failure
        assert failure is not None
        broken = "".join(f" **{name}**: {words}" for name, words in failure.properties)
        yield f"- `{each.file}`: {_cell(failure.what)}.{broken}"
    if len(found) > _MOST_FINDINGS:
        yield f"- and {len(found) - _MOST_FINDINGS} more"


def _foot(report: Report, properties: Sequence[Proven]) -> Iterator[str]:
    mutants = sum(len(each.mutants) for each in properties)
    size = "quick" if report.quick else "full"
    yield ""
    yield (
        f"<sub>{size} run of {report.version} in {lasted(report.seconds)}, begun {report.started}; "
        f"{len(properties)} properties stand against {mutants} mutants.</sub>"
    )
