"""`palimpsest verify`: what it runs, what it says, and its verdict."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from palimpsest import cli
from palimpsest.trace import MemorySink
from palimpsest_model_check.errors import CheckError
from palimpsest_model_check.explore.scenarios import SCENARIOS
from palimpsest_model_check.manifest import load_manifest
from palimpsest_model_check.mutants.session import Session
from palimpsest_model_check.mutants.verdicts import Record, Verdicts
from palimpsest_model_check.verify import of_code, of_spec
from palimpsest_model_check.verify.evidence import Report, Verdict
from palimpsest_model_check.verify.kind import Found, Kind, Kinds, MissingError, Setting
from palimpsest_model_check.verify.run import KINDS, report_table, verify
from tests.model_check.pretended import MANIFEST, TINY

pytestmark = pytest.mark.forges("the kinds replay their own traces")


def setting(**options) -> Setting:
    return Setting(**{"quick": True, "jobs": 1, "seed": 0, "console": Console(file=io.StringIO()), **options})


def raises(error: Exception):
    def run(_: Setting) -> Found:
        raise error

    return run


def kind(run) -> Kind:
    return Kind("a kind", "something", run)


def test_every_kind_of_evidence_has_a_name():
    assert list(KINDS) == [
        "models", "mutants", "graph", "code-mutants", "explore", "replay", "drive", "mirror", "programs",
        "soak", "tests",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["replay", "mirror"])
def test_a_run_of_which_tlc_replayed_nothing_is_no_evidence(name, monkeypatch):
    monkeypatch.setattr(of_code, "windows", lambda *_: [])
    evidence = KINDS[name].evidence(setting())
    assert (evidence.verdict, evidence.says) == (Verdict.FAILS, of_code.NOT_IN_TLC)


def test_a_mirrors_trace_without_its_shutdown_is_no_evidence(monkeypatch):
    class Cut(MemorySink):
        def close(self):
            super().close()
            del self.events[-1]

    monkeypatch.setattr(of_code, "MemorySink", Cut)
    monkeypatch.setattr(of_code, "windows", lambda *_: [])
    assert "not shut down" in KINDS["mirror"].evidence(setting()).says


@pytest.mark.parametrize(
    ("run", "verdict", "says"),
    [
        (lambda _: Found(3, "things", [], "all"), Verdict.HOLDS, "all"),
        (lambda _: Found(3, "things", ["one is wrong", "two"]), Verdict.FAILS, "one is wrong; two"),
        (lambda _: Found(0, "things", []), Verdict.FAILS, "no things: nothing was shown"),
        (raises(MissingError("needs the repository")), Verdict.SKIPPED, "needs the repository"),
        (raises(CheckError("no Java")), Verdict.FAILS, "CheckError: no Java"),
        (raises(OSError("disk full")), Verdict.FAILS, "OSError: disk full"),
    ],
)
def test_what_a_kind_gives_is_its_verdict(run, verdict, says):
    evidence = kind(run).evidence(setting())
    assert (evidence.verdict, evidence.says) == (verdict, says)


def test_one_kind_that_fails_makes_the_report_fail_and_the_others_are_run_all_the_same():
    ran = []
    first = Kind("first", "fails", lambda _: ran.append("first") or Found(1, "things", ["wrong"]))
    second = Kind("second", "holds", lambda _: ran.append("second") or Found(1, "things", []))
    report = verify(Kinds.of(first, second).select(()), setting())
    assert ran == ["first", "second"]
    assert not report.ok
    console = Console(file=io.StringIO(), width=160)
    console.print(report_table(report))
    assert "FAILS" in console.file.getvalue()


@pytest.mark.slow
def test_the_command_prints_a_table_writes_the_report_and_gives_the_verdict(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(of_code, "QUICK_PROGRAMS", 4)
    monkeypatch.setattr(of_code, "SCENARIOS", {name: SCENARIOS[name] for name in ("two-ranks", "failure-of-a-batch")})
    path = tmp_path / "report.json"
    kinds = ["mirror", "programs", "explore"]
    assert cli.main(["verify", "--quick", "--jobs", "1", "--json", str(path), *kinds]) == 0
    out = capsys.readouterr().out
    report = Report.load(path)
    assert report.ok
    assert report.quick
    assert [each.kind for each in report.evidence] == kinds
    assert all(each.kind in out and each.count > 0 for each in report.evidence)
    assert json.loads(path.read_text())["ok"] is True


@pytest.mark.slow
def test_kinds_that_take_one_process_run_side_by_side_and_are_told_in_their_order(capsys):
    console = Console(file=io.StringIO(), width=160)
    kinds = KINDS.select(["mirror", "programs"])
    report = verify(kinds, Setting(quick=True, jobs=2, seed=1, console=console))
    assert [(each.kind, each.verdict) for each in report.evidence] == [(kind.name, Verdict.HOLDS) for kind in kinds]
    assert report.seconds > 0
    again = verify(kinds, Setting(quick=True, jobs=1, seed=1, console=console))
    steps = [each.evidence[1].says.partition(" steps")[0] for each in (report, again)]
    assert steps[0] == steps[1]  # the same programs, wherever they are run


def test_what_a_program_finds_makes_the_command_fail(capsys, monkeypatch):
    from palimpsest.prefix_cache.hits import HitReader

    monkeypatch.setattr(HitReader, "drop_all", lambda self, reads: [])
    monkeypatch.setattr(of_code, "QUICK_PROGRAMS", 2)
    assert cli.main(["verify", "--quick", "programs"]) == 1
    assert "1 fails" in capsys.readouterr().out


def test_a_mutant_of_the_specification_without_a_verdict_on_what_it_is_now_is_evidence_against_it(
    tmp_path, monkeypatch
):
    (tmp_path / "Steps.tla").write_text(TINY)
    (tmp_path / "manifest.toml").write_text(MANIFEST)
    manifest = load_manifest(tmp_path / "manifest.toml", tmp_path)
    session = Session(manifest, tmp_path)
    name, other, *_ = session.mutants
    killed = Record("InRange", session.models[0].name, {}, 0.0, {session.models[0].name: "of another text"})
    Verdicts({name: killed}).save(tmp_path / "verdicts.json")
    monkeypatch.setattr(of_spec, "VERDICTS", tmp_path / "verdicts.json")
    monkeypatch.setattr(of_spec, "load_manifest", lambda: manifest)
    monkeypatch.setattr(of_spec, "QUICK_PART", 1.0)
    evidence = KINDS["mutants"].evidence(setting())
    assert evidence.verdict is Verdict.FAILS
    assert evidence.count == 1
    assert f"{other} was not run" in evidence.says
    assert f"palimpsest mutants {name}" in evidence.says


def test_a_kind_that_there_is_not_is_refused_by_name(capsys):
    assert cli.main(["verify", "hearsay"]) == 2
    assert "no kind of evidence hearsay; there are models, mutants" in capsys.readouterr().err


def test_the_tests_say_that_they_need_the_repository(tmp_path, monkeypatch):
    monkeypatch.setattr("palimpsest.__path__", [str(tmp_path / "site-packages" / "palimpsest")])
    evidence = KINDS["tests"].evidence(setting())
    assert evidence.verdict is Verdict.SKIPPED
    assert "needs the repository" in evidence.says


def test_the_tests_are_counted_and_those_that_failed_are_named(tmp_path, monkeypatch):
    (tmp_path / "impl" / "palimpsest").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "conftest.py").write_text("")
    (tmp_path / "tests" / "test_it.py").write_text("def test_holds(): pass\ndef test_fails(): assert 0\n")
    monkeypatch.setattr("palimpsest.__path__", [str(tmp_path / "impl" / "palimpsest")])
    evidence = KINDS["tests"].evidence(setting(quick=False))
    assert evidence.verdict is Verdict.FAILS
    assert evidence.count == 1
    assert "test_it.py::test_fails" in evidence.says


def test_the_kinds_are_listed(capsys):
    assert cli.main(["verify", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in KINDS)
