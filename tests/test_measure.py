"""Measuring: faults of a harness are refused, honest answers are timed, figures are counted right."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends._numpy import Definition, NumpyBackend, Rounded
from backends.prepared import PreparedCall
from backends.registry import load
from suite.__main__ import main
from suite.judge.derivative import names_of
from suite.measure import gate, protocol
from suite.measure.call import RefusedTime, TimedCall, UnsupportedCall
from suite.records import speed
from suite.records.lines import BrokenLine, DuplicateCell, NotARecordFile, TruncatedRun
from suite.records.speed import SpeedHeader, SpeedRecord
from suite.spec.case import Case
from suite.spec.catalogue.workloads import WORKLOADS, named, sweep
from suite.spec.inputs import draw
from suite.spec.operators.sdpa import pairs as pairs_of_sdpa

ROOT = Path(__file__).resolve().parents[1]
CASE = "sdpa/causal/mha/f32/b2h3q65k65d16"


class Twin(Definition):
    """The reference with one fault of a harness or of a baseline: `changed` makes another call of it."""

    def prepare(self, inputs: Any) -> PreparedCall:
        plain = super().prepare(inputs)
        return replace(plain, function=self.changed(plain, inputs))

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        return plain.function


class Later:
    """An array that a thread is still computing, as a device's arrays are."""

    def __init__(self, compute: Any, before: threading.Thread | None) -> None:
        def work() -> None:
            if before is not None:
                before.join()
            time.sleep(0.001)
            self._answer = compute()

        self.thread = threading.Thread(target=work)
        self.thread.start()

    @property
    def values(self) -> np.ndarray:
        self.thread.join()
        return self._answer.values

    @property
    def shape(self) -> tuple[int, ...]:
        self.thread.join()
        return self._answer.shape

    @property
    def fmt(self) -> Any:
        self.thread.join()
        return self._answer.fmt


class Asynchronous(NumpyBackend):
    """A backend whose calls return before they are done; it waits for nothing."""

    def is_array(self, value: Any) -> bool:
        return isinstance(value, Rounded | Later)


class Synchronised(Asynchronous):
    """The same, and it waits."""

    def sync(self, outputs: Any) -> None:
        if isinstance(outputs, Later):
            outputs.thread.join()


class Queued(Twin):
    """Computes on a thread, one call after the other."""

    last: threading.Thread | None = None

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        def call(**arguments: Any) -> Later:
            out = Later(lambda: plain.function(**arguments), self.last)
            self.last = out.thread
            return out

        return call


class Compiling(NumpyBackend):
    """A backend that counts what its calls compile."""

    compiled = 0

    def compilations(self, prepared: PreparedCall) -> int:
        return self.compiled


class CompilesInside(Twin):
    """Compiles in every call."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        def call(**arguments: Any) -> Any:
            self.backend.compiled += 1  # type: ignore[attr-defined]
            return plain.function(**arguments)

        return call


class CompilesFresh(Twin):
    """Compiles anew for every array it has not seen."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        seen: set[int] = set()

        def call(**arguments: Any) -> Any:
            if id(arguments["query"]) not in seen:
                seen.add(id(arguments["query"]))
                self.backend.compiled += 1  # type: ignore[attr-defined]
            return plain.function(**arguments)

        return call


class CachedAnswer(Twin):
    """Returns its first answer for ever."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        kept: list[Any] = []

        def call(**arguments: Any) -> Any:
            if not kept:
                kept.append(plain.function(**arguments))
            return kept[0]

        return call


class CachedByInput(Twin):
    """Remembers its answers by the arrays it was given: right always, and computed once."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        kept: dict[int, Any] = {}

        def call(**arguments: Any) -> Any:
            key = id(arguments["query"])
            if key not in kept:
                time.sleep(0.005)
                kept[key] = plain.function(**arguments)
            return kept[key]

        return call


class AntiCausal(Twin):
    """Hides the past instead of the future."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        def call(mask: Any, **arguments: Any) -> Any:
            turned = Rounded(mask.values.swapaxes(-1, -2), None)
            return plain.function(mask=turned, **arguments)

        return call


class WrongLayout(Twin):
    """Takes the axis of heads for that of positions."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        def call(query: Any, key: Any, value: Any, **rest: Any) -> Any:
            arrays = [Rounded(x.values.swapaxes(1, 2), x.fmt) for x in (query, key, value)]
            out = plain.function(
                **dict(zip(("query", "key", "value"), arrays, strict=True)), **rest
            )
            return Rounded(out.values.swapaxes(1, 2), out.fmt)

        return call


class WrongScale(Twin):
    """Scales by 1 / D instead of by its root."""

    def changed(self, plain: PreparedCall, inputs: Any) -> Any:
        return Definition.prepare(self, inputs.replace(scale=1.0 / inputs.sizes.D)).function


def judged(twin: type[Twin], backend: type[NumpyBackend] = NumpyBackend, case: str = CASE) -> Any:
    """What becomes of a twin that is measured as every implementation is."""
    call = TimedCall(twin(backend()), Case.parse(case))
    call.prepare()
    for _ in range(3):
        call.sample()
    return call.judge()


@pytest.mark.parametrize(
    ("twin", "backend", "kind"),
    [
        (Queued, Asynchronous, "not-synced"),
        (CompilesInside, Compiling, "compiled"),
        (CompilesFresh, Compiling, "compiled"),
        (CachedAnswer, NumpyBackend, "value"),
        (CachedByInput, NumpyBackend, "stale"),
        (AntiCausal, NumpyBackend, "value"),
        (WrongScale, NumpyBackend, "value"),
    ],
)
def test_faults_of_a_harness_are_refused(twin: Any, backend: Any, kind: str) -> None:
    with pytest.raises(RefusedTime) as refused:
        judged(twin, backend)
    assert refused.value.kind == kind, refused.value.message


def test_a_wrong_layout_is_refused() -> None:
    """Where sizes coincide nothing but the values tells."""
    with pytest.raises(RefusedTime) as refused:
        judged(WrongLayout, case="sdpa/none/mha/f32/b2h17q17k17d16")
    assert refused.value.kind == "value"


@pytest.mark.parametrize(
    ("twin", "backend"),
    [(Twin, NumpyBackend), (Queued, Synchronised), (Twin, Compiling)],
)
def test_honest_twins_are_timed(twin: Any, backend: Any) -> None:
    accuracy = judged(twin, backend)
    assert 0 < accuracy.error_ratio <= 1
    assert accuracy.grade == "exact"


def test_what_is_not_supported_is_no_time() -> None:
    with pytest.raises(UnsupportedCall, match="differentiates nothing"):
        TimedCall(Definition(NumpyBackend()), Case.parse(CASE), "backward")
    with pytest.raises(UnsupportedCall, match="computes sdpa, not additive"):
        TimedCall(Definition(NumpyBackend()), named("bahdanau-seq2seq")[0].case())


LAYERS = (
    ("nn-mha", "multi-head/pad/mha/f32/b2h4q9k7d3/e12.8.10.12", 8),
    ("nn-mha", "multi-head/none/mha/f32/b2h4q9k9d3/e12.12.12.12/self", 8),
    ("bahdanau", "additive/pad/mha/f32/b2h1q5k9d6v4/e5.7.4.4/head", 3),
    ("nn-layer-norm", "layer-norm/none/mha/f32/b4h1q3k3d8/e8.8.8.8/self", 2),
    ("nn-batch-norm", "batch-norm/none/mha/f32/b4h1q3k3d8/e8.8.8.8/self/train", 2),
)
"""An implementation in torch, a case, and how many parameters have a gradient."""


@pytest.mark.parametrize("direction", ["backward", "forward+backward"])
@pytest.mark.parametrize(("name", "case", "parameters"), LAYERS)
def test_layers_are_timed_backward_by_inputs_and_parameters(
    name: str, case: str, parameters: int, direction: str
) -> None:
    pytest.importorskip("torch")
    (layer,) = (i for i in load("torch").implementations() if i.name == name)
    call = TimedCall(layer, Case.parse(case), direction)
    preparation = call.prepare()
    assert min(call.sample() for _ in range(3)) > 0
    accuracy = call.judge()
    assert accuracy.error_ratio is not None
    assert 0 < accuracy.error_ratio <= 1
    operands = ["query"] if call.cell.inputs.own else ["query", "key", "value"]
    assert call.wrt[: len(operands)] == operands
    assert set(call.wrt[len(operands) :]) <= set(call.cell.inputs.parameters)
    assert len(call.wrt) == len(operands) + parameters
    counted = layer.operator.work is not None
    assert (preparation.work is not None) == counted


def test_a_wrong_gradient_of_a_parameter_is_refused() -> None:
    """Of a layer whose output is right, and whose derivative forgets half of one parameter's."""
    torch = pytest.importorskip("torch")
    (layer,) = (i for i in load("torch").implementations() if i.name == "bahdanau")
    call = TimedCall(layer, Case.parse(LAYERS[2][1]), "backward")

    class Halved(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(context: Any, dy: Any) -> Any:
            return dy / 2

    differentiable = layer.differentiable

    def halved(inputs: Any) -> PreparedCall:
        plain = differentiable(inputs)
        assert "score_vector" in names_of(plain, inputs)

        def function(score_vector: Any, **rest: Any) -> Any:
            return plain.function(score_vector=Halved.apply(score_vector), **rest)

        return replace(plain, function=function)

    layer.differentiable = halved
    call.prepare()
    with pytest.raises(RefusedTime, match="gradient of the score_vector"):
        call.judge()


def test_a_slowed_call_is_slower_by_as_much() -> None:
    call = TimedCall(Definition(NumpyBackend()), Case.parse(CASE))
    call.prepare()
    call.call = lambda: time.sleep(0.004)
    plain = min(call.sample(1) for _ in range(5))
    call.slow = 0.5
    assert min(call.sample(1) for _ in range(5)) / plain == pytest.approx(1.5, abs=0.05)


def test_pairs_are_counted_from_the_mask() -> None:
    inputs = draw(Case.parse("sdpa/causal/gqa2/f32/b2h4q300k300d8"))
    pairs = 2 * 4 * 300 * 301 // 2
    assert pairs_of_sdpa(inputs) == pairs
    assert pairs_of_sdpa(inputs) == int(inputs.attends.sum())
    count = inputs.operator.work
    assert count is not None
    work = count(inputs, "forward")
    assert work.flops == 2 * pairs * (8 + 8)
    assert work.bytes == 4 * (2 * 4 * 300 * 8 * 2 + 2 * 2 * 300 * 8 * 2)
    assert count(inputs, "backward").flops == 2.5 * work.flops
    assert count(inputs, "forward+backward").flops == 3.5 * work.flops


@pytest.mark.parametrize(
    "text",
    [
        "sdpa/none/mha/f32/b2h3q5k7d8", "sdpa/pad/mha/f32/b3h2q5k70d8", "sdpa/win3.0/mha/f32/b1h2q9k9d4",
        "sdpa/bool.bhqk/mha/f32/b2h3q5k7d8", "sdpa/none/mha/f32/b2h3q5k7d8/bias.inf",
    ],
)  # fmt: skip
def test_pairs_are_those_that_attend(text: str) -> None:
    inputs = draw(Case.parse(text))
    assert pairs_of_sdpa(inputs) == int(inputs.attends.sum())


def test_the_work_of_additive_attention() -> None:
    inputs = draw(Case.parse("additive/none/mha/f32/b2h1q3k5d4v6/e7.8.6.6"))
    count = inputs.operator.work
    assert count is not None
    work = count(inputs, "forward")
    assert work.pairs == 2 * 3 * 5
    assert work.flops == 2 * 2 * (3 * 7 + 5 * 8) * 4 + 30 * (4 * 4 + 2 * 6)


def test_workloads_are_cases_with_names() -> None:
    assert len(WORKLOADS) >= 20
    assert len({w.name for w in WORKLOADS}) == len(WORKLOADS)
    for workload in (*WORKLOADS, *sweep()):
        for dtype in ("f32", "bf16"):
            case = workload.case(dtype)
            assert Case.parse(case.id) == case
    assert named("all") == WORKLOADS
    with pytest.raises(ValueError, match="bert-base-512"):
        named("bert")


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(2000):
        low, high = protocol.interval(rng.normal(size=25))
        held += low <= 0 <= high
    assert held / 2000 >= 0.985
    assert protocol.interval([1.0, 2.0, 3.0]) == (-np.inf, np.inf)


def pairs_of(ratio: float, noise: float, seed: int = 0) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    drawn = {"verdict": ratio, "twin": 1.0, "injected": 1.0 + gate.INJECTED}
    return {n: list(np.log(r) + noise * rng.normal(size=60)) for n, r in drawn.items()}


TIMES = {"candidate": [1.0], "baseline": [1.0]}


@pytest.mark.parametrize(
    ("ratio", "noise", "code"),
    [
        (1.00, 0.01, gate.OK),
        (1.05, 0.01, gate.REGRESSION),
        (0.90, 0.01, gate.OK),
        (1.05, 0.30, gate.NOISY),
        (1.00, 0.30, gate.NOISY),
    ],
)
def test_verdicts(ratio: float, noise: float, code: int) -> None:
    codes = {
        gate.judge(
            gate.Outcome("w", CASE, "forward", gate.OK), pairs_of(ratio, noise, seed), TIMES
        ).code
        for seed in range(20)
    }
    assert codes == {code}


def test_twins_that_differ_make_no_verdict() -> None:
    """A machine on which two equal workers differ by 4 % finds regressions that are none."""
    pairs = pairs_of(1.05, 0.01)
    pairs["twin"] = [x + 0.04 for x in pairs["twin"]]
    outcome = gate.judge(gate.Outcome("w", CASE, "forward", gate.OK), pairs, TIMES)
    assert outcome.code == gate.NOISY
    assert outcome.alarms == 1.0


def test_the_worst_outcome_decides() -> None:
    by_code = {c: gate.Outcome("w", CASE, "forward", c) for c in range(5)}
    assert gate.worst([by_code[gate.OK], by_code[gate.NOTHING]]) == gate.OK
    assert gate.worst([by_code[gate.NOTHING]]) == gate.NOTHING
    assert gate.worst([]) == gate.NOTHING
    assert gate.worst([by_code[gate.OK], by_code[gate.NOISY]]) == gate.NOISY
    assert gate.worst([by_code[gate.NOISY], by_code[gate.REGRESSION]]) == gate.REGRESSION
    assert gate.worst(list(by_code.values())) == gate.WRONG


def record(**changes: Any) -> SpeedRecord:
    fields: dict[str, Any] = {
        "workload": "w", "case": CASE, "backend": "torch", "implementation": "sdpa", "mode": "eager",
        "device": "cpu", "dtype": "f32", "direction": "forward", "threads": 1, "status": "timed",
        "samples": (0.01, 0.03, 0.02), "flops": 1e9, "bytes": 10**6, "gemm": 1e11, "copy": 1e9,
        "error_ratio": 0.5,
    }  # fmt: skip
    return SpeedRecord(**{**fields, **changes})


def test_records_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "speed.jsonl"
    records = [
        record(),
        record(
            direction="backward", status="refused", kind="value", samples=(), error_ratio=np.inf
        ),
    ]
    writer = speed.writer(path, SpeedHeader(protocol=protocol.VERSION))
    for entry in records:
        writer.write(entry)
    writer.close()
    timed, refused = speed.load(path).records
    assert [timed, refused] == records
    assert timed.seconds == 0.02
    assert timed.share_of_gemm == pytest.approx(0.5)
    assert timed.share_of_copy == pytest.approx(0.05)
    assert refused.seconds is None
    with pytest.raises(FileExistsError):
        speed.writer(path, SpeedHeader(protocol=1))

    lines = path.read_text().splitlines()
    (tmp_path / "cut.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(TruncatedRun):
        speed.load(tmp_path / "cut.jsonl")
    assert len(speed.load(tmp_path / "cut.jsonl", partial=True).records) == 2
    (tmp_path / "lost.jsonl").write_text("\n".join([lines[0], *lines[2:]]) + "\n")
    with pytest.raises(BrokenLine, match="footer counts"):
        speed.load(tmp_path / "lost.jsonl")
    (tmp_path / "twice.jsonl").write_text("\n".join([*lines[:2], *lines[1:]]) + "\n")
    with pytest.raises(DuplicateCell, match="line 3"):
        speed.load(tmp_path / "twice.jsonl")
    (tmp_path / "wrong.jsonl").write_text(path.read_text().replace("0.03", '"slow"'))
    with pytest.raises(BrokenLine, match=r"line 2: Expected `float`, got `str` - at `\$\.samples"):
        speed.load(tmp_path / "wrong.jsonl")
    (tmp_path / "other.jsonl").write_text("{}\n")
    with pytest.raises(NotARecordFile):
        speed.load(tmp_path / "other.jsonl")


KERNELS = """
import torch


def right(query, key, value, attn_mask=None, is_causal=False):
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.softmax(scores, -1) @ value


def anticausal(query, key, value, attn_mask=None, is_causal=False):
    scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return torch.softmax(scores, -1) @ value
"""


def test_bench_times_a_function_and_refuses_a_wrong_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    case = "sdpa/causal/mha/f32/b2h3q65k65d16"
    common = ["bench", "--backend=torch", f"--workload={case}", "--mode=eager", "--quick"]
    common.append("--direction=forward")
    results = tmp_path / "speed.jsonl"
    functions = [f"--function={path}:right", f"--function={path}:anticausal"]
    assert main([*common, *functions, f"--results={results}"]) == gate.WRONG
    out = capsys.readouterr().out
    assert "1 timed, 1 refused" in out
    right, wrong = speed.load(results).records
    assert (right.status, right.implementation) == ("timed", "right")
    assert len(right.samples) == 5
    assert 0 < right.share_of_gemm <= 1  # type: ignore[operator]
    assert right.peak_bytes
    assert min(right.first_call, right.convert) > 0  # type: ignore[type-var]
    assert (wrong.status, wrong.kind, wrong.samples) == ("refused", "value", ())
    assert main([*common, functions[0], f"--results={results}"]) == gate.NOTHING
    assert "nothing is overwritten" in capsys.readouterr().err


def test_the_gate_never_times_a_wrong_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    results = tmp_path / "gate.json"
    code = main(
        [
            "bench", "--backend=torch", f"--function={path}:anticausal", "--against=sdpa",
            "--workload=sdpa/causal/mha/f32/b2h3q65k65d16", "--seconds=0.1", f"--results={results}",
        ]
    )  # fmt: skip
    assert code == gate.WRONG
    assert "WRONG ANSWER" in capsys.readouterr().out
    (verdict,) = json.loads(results.read_text())
    assert "candidate (anticausal): value" in verdict["message"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backend=torch", "--workload=nothing"], "unknown workload 'nothing'"),
        (["--backend=torchh"], "unknown backend"),
        (["--backend=torch", "--samples=0"], "must be positive"),
        (["--backend=numpy", "--implementation=none"], "valid: numpy:definition"),
        (["--backend=numpy", "--against=venv:/nowhere"], "name one --backend and one"),
        (
            ["--backend=numpy", "--implementation=definition", "--against=venv:/nowhere"],
            "expected a virtual environment",
        ),
        (
            ["--backend=numpy", "--implementation=definition", "--against=commit:HEAD"],
            "--function=PATH.py:NAME",
        ),
    ],
)
def test_usage_errors_measure_nothing(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    assert main(["bench", *arguments]) == gate.NOTHING
    assert re.search(said, capsys.readouterr().err)


def test_a_malformed_command_line_is_no_wrong_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--backend=torch", "--threads=many"])
    assert ended.value.code == gate.NOTHING


def test_a_sample_is_synchronised_call_by_call() -> None:
    """One sync after many calls lets a runtime compute them side by side."""
    waited: list[Any] = []
    protocol.timed(lambda: len(waited), waited.append, 3)
    assert waited == [0, 1, 2]


AGREE = ("gpt2-train", "bert-base-padded", "vit-base-197", "llama-decode", "whisper-cross-decode")


@pytest.mark.slow
def test_times_agree_with_those_of_torch() -> None:
    """torch.utils.benchmark measures the same calls in turn with the protocol: medians within 3 %.

    Before each of its blocks the former calls twice, unasked; so both do here. Samples that do not
    follow others at once, as those of a run of several implementations, are slower by some percent.
    """
    pytest.importorskip("torch")
    code = f"""
import statistics
import torch
torch.set_num_threads(1)
from torch.utils.benchmark import Timer
from backends.registry import load
from suite.measure.call import TimedCall
from suite.spec.catalogue.workloads import named
(sdpa,) = (i for i in load("torch").implementations() if i.name == "sdpa")
for name in {AGREE}:
    timed = TimedCall(sdpa, named(name)[0].case())
    timed.prepare()
    timer = Timer("call()", globals={{"call": timed.call}}, num_threads=1)
    timer.timeit(3)
    ours, theirs = [], []
    for _ in range(40):
        timed.call(), timed.call()
        ours.append(timed.sample())
        theirs.append(timer.timeit(timed.inner).median)
    ours, theirs = statistics.median(ours), statistics.median(theirs)
    print(name, ours, theirs, ours / theirs)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    ratios = {line.split()[0]: float(line.split()[3]) for line in done.stdout.splitlines()}
    assert set(ratios) == set(AGREE), done.stderr
    assert all(abs(ratio - 1) < 0.03 for ratio in ratios.values()), done.stdout


@pytest.mark.slow
def test_a_sample_costs_next_to_nothing() -> None:
    """What the protocol adds to a call that does nothing: less than 3 microseconds."""
    (definition,) = load("numpy").implementations()
    call = TimedCall(definition, Case.parse("sdpa/none/mha/f32/b1h1q1k1d8"))
    call.prepare()
    call.call = lambda: None
    assert min(call.sample(1000) for _ in range(5)) < 3e-6


BENCHMARKS = {
    name: importlib.import_module(f"suite.benchmarks.{name}")
    for name in ("bench_torch", "bench_jax", "bench_tensorflow")
}


def test_asv_counts_the_cells_of_every_framework_apart() -> None:
    """asv runs what is set up once for all benchmarks whose `setup_cache` stands at one place."""
    files = {inspect.getsourcefile(m.Conformance.setup_cache) for m in BENCHMARKS.values()}
    assert len(files) == len(BENCHMARKS)


def test_the_history_of_asv_goes_on() -> None:
    """asv finds results again by names, parameters and versions: none of them may change unnoticed."""
    every: dict[str, Any] = {}
    for name, module in BENCHMARKS.items():
        for kind, group in inspect.getmembers(module, inspect.isclass):
            for text in dir(group):
                if text.startswith(("time_", "track_", "peakmem_")):
                    unit = getattr(getattr(group, text), "unit", "")
                    asked = (group.param_names, group.params, group.version, unit)
                    every[f"{name}.{kind}.{text}"] = asked
    assert len(every) == 24
    assert every["bench_torch.Forward.time_forward"][1][1] == ["sdpa", "eager"]
    text = json.dumps(every, sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "aba5ea1d5b5a2619"


@pytest.mark.slow
def test_the_gate_sees_what_a_commit_made_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel of an earlier commit against itself, and against one that waits 1 ms."""

    def git(*words: str) -> None:
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
        subprocess.run(("git", *who, *words), cwd=tmp_path, check=True, capture_output=True)

    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    git("init", "--quiet")
    git("add", "kernels.py")
    git("commit", "--quiet", "-m", "right")
    gated = [
        "bench", "--backend=torch", f"--function={path}:right", "--against=commit:HEAD",
        "--workload=sdpa/causal/mha/f32/b2h3q65k65d16", "--seconds=20",
    ]  # fmt: skip
    assert main(gated) == gate.OK, capsys.readouterr().out
    path.write_text(
        "import time\n" + KERNELS.replace("    return", "    time.sleep(1e-3)\n    return")
    )
    assert main(gated) == gate.REGRESSION, capsys.readouterr().out
    assert path.read_text().startswith("import time")
