"""A report as a page of its own: the verdict, a table per kind of evidence, each property, each finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from string import Template

from .evidence import Detail, Evidence, Report, Verdict
from .findings import Finding
from .markdown import SIGNS, headline, lasted
from .properties import Proven

_TEMPLATE = Path(__file__).with_name("report.html")
_SHOWN_MUTANTS = 6


def report_page(report: Report, properties: Sequence[Proven], found: Sequence[Finding] = ()) -> str:
    """The page's text; it needs nothing else."""
    size = "quick" if report.quick else "full"
    about = f"{size} run of palimpsest {report.version}, begun {report.started}, {lasted(report.seconds)} in all"
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        verdict=escape(headline(report)),
        standing="holds" if report.ok else "fails",
        about=escape(about),
        findings="".join(map(_finding, found)),
        evidence="".join(map(_row, report.evidence)),
        details="".join(_details(report.evidence)),
        properties="".join(map(_property, properties)),
    )


def _row(each: Evidence) -> str:
    sign = f"{SIGNS[each.verdict]} {each.verdict.value}"
    link = f'<a href="#{_id(each)}">{escape(each.kind)}</a>' if each.detail else escape(each.kind)
    return (
        f'<tr class="{each.verdict.value}"><td class="sign">{sign}</td><td>{link}</td><td>{escape(each.what)}</td>'
        f"<td>{each.count:,} {escape(each.unit)}</td><td>{lasted(each.seconds)}</td><td>{escape(each.says)}</td></tr>"
    )


def _id(each: Evidence) -> str:
    return escape(each.kind.replace(" ", "-"))


def _details(evidence: Sequence[Evidence]) -> Iterator[str]:
    for each in evidence:
        if each.detail is not None:
            state = " open" if each.verdict is Verdict.FAILS else ""
            yield (
                f'<details id="{_id(each)}"{state}><summary>{SIGNS[each.verdict]} {escape(each.kind)}: '
                f"{len(each.detail.rows):,} lines</summary>{_table(each.detail)}</details>"
            )


def _table(detail: Detail) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in detail.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in detail.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _property(each: Proven) -> str:
    shown = "".join(
        f"<li><code>{escape(mutant)}</code>{f' in {escape(model)}' if model != mutant else ''}</li>"
        for mutant, model in each.mutants[:_SHOWN_MUTANTS]
    )
    more = len(each.mutants) - _SHOWN_MUTANTS
    rest = f"<li>and {more} more</li>" if more > 0 else ""
    return (
        f"<tr><td><b>{escape(each.name)}</b></td><td>{escape(each.says)}</td><td>{each.models}</td>"
        f"<td>{len(each.mutants)}</td><td><ul>{shown}{rest}</ul></td></tr>"
    )


def _finding(each: Finding) -> str:
    failure = each.picture.failure
    assert failure is not None
    said = "".join(f"<p><b>{escape(name)}</b> {escape(words)}</p>" for name, words in failure.properties)
    steps = "".join(
        f"<tr><td>{moment.number}</td><td>{escape(moment.lane)}</td><td>{escape(moment.action)}</td>"
        f"<td>{'<br>'.join(map(escape, moment.notes))}</td></tr>"
        for moment in each.picture.moments[-40:]
    )
    picture = (
        f'<iframe title="{escape(each.heading)}" srcdoc="{escape(each.drawn)}"></iframe>'
        if each.drawn
        else f"<p>Draw it: <code>palimpsest view {escape(each.file)}</code></p>"
    )
    return (
        f'<section class="finding"><h3>✗ {escape(each.heading)}</h3><p>{escape(failure.what)}</p>{said}{picture}'
        f"<details><summary>the last steps as a table</summary><table><thead><tr><th>step</th><th>thread</th>"
        f"<th>action</th><th>what it did</th></tr></thead><tbody>{steps}</tbody></table></details></section>"
    )
