"""Searches of sweeps: one corpus, every cause once, what becomes of processes that die."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.records import searches
from suite.records.lines import BrokenLine
from suite.records.searches import Hit, Near, Searched, SearchFinding
from suite.report import sweeps as tables
from suite.report.swept import Swept
from suite.sweep import driver, searching
from suite.sweep.corpus import CAUSES, Corpus
from suite.sweep.plan import plan_of, search_options
from suite.sweep.run import FAILED, GREEN, UNFINISHED, Sweep
from suite.sweep.search_alone import AloneSearch, NoMemorySearch
from suite.sweep.searching import CasesTask, SearchTask, ShrinkTask
from suite.sweep.store import Store, SweepLimits
from suite.sweep.tasks import SweepError, Task, WrongMachine
from tests.sweeps_by_hand import NO_MEMORY, Here, kinds, sweep

pytest.importorskip("hypothesis")

WRONG = {"backends": ["tests.miniatures:always_wrong"], "dtypes": ["f32"], "gradients": False}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis draws a batch to its end, also where enough is judged."""
    monkeypatch.setattr("suite.search.engine.BATCH", 10)


def test_every_cause_is_made_small_once(tmp_path: Path) -> None:
    plan = plan_of({"search": [WRONG | {"examples": 3, "seeds": "0-2"}]})
    code, engine = sweep(tmp_path, plan)
    assert code == FAILED
    findings = list(searches.findings(tmp_path))
    met = list(searches.searched(tmp_path))
    causes = {hit.cause for one in met for hit in one.hits}
    assert {finding.cause for finding in findings} == causes
    drawn = {(one.seed, n) for one in met for n in range(one.first, one.end)}
    assert drawn == {(seed, n) for seed in range(3) for n in range(3)}
    assert sum(one.examples for one in met) == 9
    assert kinds(engine).count(ShrinkTask) == len(causes) < sum(len(one.hits) for one in met)
    finding = findings[0]
    assert finding.repeats
    assert len(finding.case) <= len(finding.drawn)
    assert finding.no_script
    table = tables.findings(Swept([tmp_path])).reset_index()
    assert table["seeds"].max() == 3
    assert set(table["file"]) == {each.id for each in findings}
    corpus = (tmp_path / "search" / "corpus.jsonl").read_text().splitlines()
    assert {json.loads(line)["case"] for line in corpus} >= {f.drawn for f in findings}
    again, engine = sweep(tmp_path, plan)
    assert (again, engine.tasks) == (FAILED, []), "nothing is searched twice, and nothing forgotten"


def test_problems_are_asked_of_the_other_tables(tmp_path: Path) -> None:
    plan = plan_of(
        {"search": [WRONG | {"examples": 2}, {"backends": ["numpy"], "examples": 8, "seeds": 7}]}
    )
    code, engine = sweep(tmp_path, plan)
    assert code == FAILED
    tasks = [task for task in engine.tasks if isinstance(task, SearchTask) and task.cases]
    of = {task.options.backend: set(task.cases) for task in tasks}
    met = [one for one in searches.searched(tmp_path) if not one.corpus]
    causes = {hit.cause: hit.case for one in met for hit in one.hits}
    assert causes
    assert len(of["numpy",]) <= len(causes), "of each cause one problem"
    assert of["numpy",] <= {hit.case for one in met for hit in one.hits}
    assert of["tests.miniatures:always_wrong",] <= {near.case for one in met for near in one.near}
    table = tables.searched(Swept([tmp_path])).reset_index().set_index("backends")
    row = table.loc["numpy"]
    assert (row["seeds"], row["whole"], row["examples"]) == (1, 1, 8)
    assert row["corpus"] == len(of["numpy",])
    assert sweep(tmp_path, plan)[1].tasks == [], "the corpus is the same"


def test_tables_of_the_same_backends_are_told_apart(tmp_path: Path) -> None:
    """No file is written twice, and every cause is made small with the options that it was met with."""
    of = [{}, {"seeds": 1}, {"gradients": True}, {"dtypes": ["f64"]}]
    plan = plan_of({"search": [WRONG | {"examples": 1} | words for words in of]})
    code, engine = sweep(tmp_path, plan)
    assert code == FAILED
    names = [task.name for task in engine.tasks]
    assert len(set(names)) == len(names)
    searched = list(searches.searched(tmp_path))
    drawn = [one for one in searched if not one.corpus]
    assert len(drawn) == 4
    dtypes = {hit.cause: one.options["dtype"] for one in drawn for hit in one.hits}
    shrunk = [task for task in engine.tasks if isinstance(task, ShrinkTask)]
    assert all([*task.options.dtype] == dtypes[task.cause] for task in shrunk)
    assert {task.options.dtype for task in shrunk} == {("f32",), ("f64",)}
    assert sweep(tmp_path, plan)[1].tasks == []
    table = tables.searched(Swept([tmp_path])).reset_index()
    told = {(row["dtypes"], row["gradients"]): row["seeds"] for _, row in table.iterrows()}
    assert told == {("f32", "no"): 2, ("f32", "yes"): 1, ("f64", "no"): 1}
    assert set(table["mode"]) == {"eager"}


def test_the_same_seed_draws_the_same_cases_as_a_plain_search(tmp_path: Path) -> None:
    from suite.front.plan import Plan
    from suite.search.engine import Search

    plan = plan_of({"search": [{"backends": ["numpy"], "examples": 5, "seeds": 3}]})
    assert sweep(tmp_path, plan)[0] == GREEN
    parts = list(searches.searched(tmp_path))
    assert len(parts) > 1, "several parts"
    plain = Search(Plan.make(search_options(plan, plan.search[0])), 3, None, 5).run()
    assert {(one.digest, one.of) for one in parts} == {(plain.digest, 5)}
    assert sum((Counter(one.statuses) for one in parts), Counter()) == plain.statuses


def test_the_case_that_kills_a_search_is_found(tmp_path: Path) -> None:
    plan = plan_of({"search": [{"backends": ["tests.unruly:aborts"], "examples": 1}]})
    with Store(tmp_path, plan) as store:
        source = Sweep(plan, store, Here(), SweepLimits()).searches
    assert source is not None
    of = source.next(1.0)
    assert isinstance(of, CasesTask)
    right, kills = "sdpa/none/mha/f32/b2h3q5k7d8", "sdpa/none/mha/f32/b2h3q5k17d8"
    options = (of.options, "", of.gradients)
    task = SearchTask(*options, 0, (kills, right), of=2, digest="d")
    source.died(task, "killed")
    alone = source.next(1.0)
    assert isinstance(alone, AloneSearch)
    met = alone.run()
    assert {(hit.case, hit.status) for hit in met.hits} == {(kills, "crash")}
    assert "it died of SIGABRT" in met.ended
    # Every cell is judged: those beside the one that kills, too.
    in_process = replace(task, cases=(right,)).run()
    cells = sum(in_process.statuses.values())
    assert sum(met.statuses.values()) == 2 * cells
    assert (met.examples, met.first, met.end) == (2, 0, 2)
    assert met.versions == in_process.versions
    source.take(alone, met)
    findings = list(searches.findings(tmp_path))
    assert {(f.kind, f.case, f.repeats) for f in findings} == {("crash", kills, False)}
    assert source.has_hits
    assert not any(isinstance(t, ShrinkTask) for t in iter(lambda: source.next(1.0), None))


def test_a_search_that_dies_loses_none_of_its_examples(tmp_path: Path) -> None:
    plan = plan_of({"search": [WRONG | {"examples": 4}]})
    whole, _ = sweep(tmp_path / "whole", plan)

    def fate(task: Task[Any]) -> str | None:
        return "killed" if type(task) is SearchTask else None

    code, engine = sweep(tmp_path / "killed", plan, Here(fate))
    assert code == whole == FAILED
    assert AloneSearch in kinds(engine)
    totals = []
    for folder in (tmp_path / "whole", tmp_path / "killed"):
        met = list(searches.searched(folder))
        hits: Counter[Any] = Counter()
        for one in met:
            for hit in one.hits:
                hits[hit.cause] += hit.times
        statuses = sum((Counter(one.statuses) for one in met), Counter())
        totals.append((sum(one.examples for one in met), statuses, hits))
    assert totals[0] == totals[1]
    corpora = [
        (tmp_path / name / "search" / "corpus.jsonl").read_bytes() for name in ("whole", "killed")
    ]
    assert corpora[0] == corpora[1]


def test_a_case_that_memory_does_not_last_for_costs_itself_alone(tmp_path: Path) -> None:
    plan = plan_of({"search": [{"backends": ["numpy"], "examples": 4}]})
    heavy = CasesTask(search_options(plan, plan.search[0]), "", True, 0, 4).run().cases[2]

    def fate(task: Task[Any]) -> str | None:
        judges = isinstance(task, SearchTask) and not isinstance(task, NoMemorySearch)
        return NO_MEMORY if judges and heavy in task.cases else None

    code, engine = sweep(tmp_path, plan, Here(fate))
    assert code == FAILED
    assert sum(task.exclusive for task in engine.tasks) == 1
    met = list(searches.searched(tmp_path))
    assert sum(one.examples for one in met) == 4
    assert [(hit.case, hit.status) for one in met for hit in one.hits] == [(heavy, "crash")]
    (finding,) = searches.findings(tmp_path)
    assert "short of memory" in finding.message
    assert len(tables.searched(Swept([tmp_path]))) == 1


def test_a_search_stops_at_the_limit_and_goes_on_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that takes longer than was thought ends by itself, and what it met is kept."""
    monkeypatch.setattr(searching, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(driver, "SHORTEST", 60.0)
    plan = plan_of({"search": [WRONG | {"examples": 6}]})
    limits = SweepLimits(hours=1.0)

    class Clock(Here):
        """An engine on which a search takes half an hour a task."""

        def carry_out(self, task: Task[Any]) -> Any:
            if isinstance(task, SearchTask):
                limits.spend(1800, 1)
            return super().carry_out(task)

    code, _ = sweep(tmp_path, plan, Clock(), limits)
    assert code == UNFINISHED
    before = {*(tmp_path / "search").glob("*/seed-*")}
    assert [(one.first, one.end) for one in searches.searched(tmp_path)] == [(0, 1), (1, 2)]
    code, _ = sweep(tmp_path, plan)
    assert code == FAILED
    assert before < set((tmp_path / "search").glob("*/seed-*"))
    parts = sorted((one.first, one.end) for one in searches.searched(tmp_path))
    assert [n for first, end in parts for n in range(first, end)] == list(range(6))


def test_a_search_that_draws_other_cases_than_it_did_is_not_continued(tmp_path: Path) -> None:
    plan = plan_of({"search": [WRONG | {"examples": 2}]})
    sweep(tmp_path, plan)
    path, *others = (tmp_path / "search").glob("*/seed-*")
    assert others
    entry = json.loads(path.read_text())
    path.write_text(json.dumps(entry | {"digest": "another"}))
    others[0].unlink()
    with pytest.raises(SweepError, match="other cases were drawn than those of which"):
        sweep(tmp_path, plan)


def test_the_corpus_has_each_cause_once_and_is_bounded(tmp_path: Path) -> None:
    def hit(number: int, case: str) -> Hit:
        return Hit(("i", "values", "value", "f32", f"way {number}"), case, "fail", "value", "m")

    def near(number: int, implementation: str = "i") -> Near:
        return Near(implementation, "values", "f32", f"case {number}", number / 100)

    met = [
        Searched(("b",), seed, 9, {}, 1.0, "", (hit(n, f"case {n}{'x' * seed}"),), (near(10 * n + seed),))
        for n in range(30)
        for seed in range(3)
    ]  # fmt: skip
    written = []
    for order in (met, met[::-1]):
        corpus = Corpus(tmp_path / str(len(written)))
        for one in order:
            corpus.take(one)
        assert corpus.path.is_file()
        written.append(corpus.path.read_text())
    assert written[0] == written[1], "the order of arrival says nothing"
    entries = [json.loads(line) for line in written[0].splitlines()]
    causes = [entry["cause"] for entry in entries if "cause" in entry]
    assert len(causes) == len(set(causes)) == CAUSES
    assert {entry["case"] for entry in entries if "cause" in entry} >= {
        f"case {n}" for n in range(10)
    }
    assert [entry["ratio"] for entry in entries if "ratio" in entry] == [2.92, 2.91, 2.90]


def test_the_corpus_is_written_as_the_sweep_goes(tmp_path: Path) -> None:
    plan = plan_of({"search": [WRONG | {"examples": 3, "seeds": "0-1"}]})

    def gone(task: Task[Any]) -> BaseException | None:
        return KeyboardInterrupt() if isinstance(task, SearchTask) and task.seed == 1 else None

    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, plan, Here(gone))
    assert (tmp_path / "search" / "corpus.jsonl").read_text()


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_smaller_case_that_kills_is_no_loss(tmp_path: Path, deaths: int) -> None:
    """A process that dies once may have been killed by anything: it is begun again."""
    plan = plan_of({"search": [WRONG | {"examples": 1}]})
    count = itertools.count()

    def fate(task: Task[Any]) -> str | None:
        return "killed" if isinstance(task, ShrinkTask) and next(count) < deaths else None

    code, engine = sweep(tmp_path, plan, Here(fate))
    assert code == FAILED
    assert kinds(engine).count(ShrinkTask) == 2
    (finding,) = searches.findings(tmp_path)
    assert finding.repeats == (deaths == 1)
    if deaths == 2:
        assert finding.case == finding.drawn
        assert finding.no_script == "the process that made it smaller died 2 times: killed"


def test_records_of_searches(tmp_path: Path) -> None:
    finding = SearchFinding(("a", "b"), ("torch",), "d", "c", "fail", "value", "m", True, "print()")
    place = tmp_path / "search" / "findings" / f"{finding.id}.json"
    place.parent.mkdir(parents=True)
    place.write_bytes(searches.encoded(finding))
    assert list(searches.findings(tmp_path)) == [finding]
    met = Searched(("torch",), 1, 2, {"pass": 3}, 0.5, "x", (Hit(("a",), "c", "fail", "v", "m"),))
    other = tmp_path / "search" / "t" / "seed-1-2.json"
    other.parent.mkdir()
    other.write_bytes(searches.encoded(met))
    assert list(searches.searched(tmp_path)) == [met]
    other.write_text("{}")
    with pytest.raises(BrokenLine, match="seed-1-2"):
        list(searches.searched(tmp_path))


@pytest.mark.parametrize(
    ("kind", "held"),
    [(SearchTask, "search/*/seed-1-*.json"), (ShrinkTask, "search/findings/*")],
)
def test_a_machine_with_other_versions_is_told(tmp_path: Path, kind: type, held: str) -> None:
    """Nothing that it says is recorded."""

    class Other(Here):
        """An engine one of whose machines has other software."""

        def carry_out(self, task: Task[Any]) -> Any:
            result = super().carry_out(task)
            if not isinstance(task, kind) or getattr(task, "seed", 1) == 0:
                return result
            return replace(result, versions={"numpy": "0.1"})

    plan = plan_of({"search": [WRONG | {"examples": 1, "seeds": "0-1"}]})
    with pytest.raises(WrongMachine, match=r"this machine has \w+ 0\.1, the sweep began with"):
        sweep(tmp_path, plan, Other())
    assert not list(tmp_path.glob(held))
