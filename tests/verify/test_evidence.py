"""A report of `palimpsest verify`: its verdict, and its way through JSON."""

from __future__ import annotations

import pytest

from palimpsest_model_check.verify.evidence import Detail, Evidence, Report, ReportError, Verdict


def evidence(verdict: Verdict, **fields) -> Evidence:
    return Evidence("models", "each model has its expected verdict", 137, "models", verdict, 12.5, **fields)


def report(*verdicts: Verdict) -> Report:
    return Report("1.0", True, "2026-01-01T00:00:00+00:00", tuple(map(evidence, verdicts)), 12.5)


def test_a_report_holds_when_nothing_fails_and_something_holds():
    assert report(Verdict.HOLDS, Verdict.SKIPPED).ok
    assert not report(Verdict.HOLDS, Verdict.FAILS).ok
    assert not report(Verdict.SKIPPED).ok
    assert not report().ok


def test_a_report_comes_back_from_its_file_as_it_was(tmp_path):
    detail = Detail(("model", "verdict"), (("takeover", "ok"), ("reset", "ok")))
    whole = Report(
        "1.0", False, "2026-01-01T00:00:00+00:00", (evidence(Verdict.HOLDS, says="all", detail=detail),), 9.0
    )
    whole.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json") == whole


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"report": 1, "evidence": []}', '{"report": 2, "evidence": [{}]}'])
def test_a_file_that_is_no_report_is_refused_by_name(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ReportError, match="report"):
        Report.load(tmp_path / "report.json")
