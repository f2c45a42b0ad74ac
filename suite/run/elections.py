"""Elections as declared: a page of every question, its answers, and the declarations of each
implementation.

    attention-conformance elections > docs/data/elections.md

`pytest suite` checks the declarations (`suite/test_elections.py`), so that the page needs no run. Each
backend is loaded in its own process: Keras has one engine per process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_conformance.backends import registry
from attention_conformance.backends.protocol import BackendUnavailable, BrokenFramework, UsageError
from attention_conformance.suite.flags import CommandOptions
from attention_conformance.suite.run.options import shared
from attention_conformance.suite.run.process import run_module
from attention_conformance.suite.spec.elections import ELECTION_CASES, QUESTIONS, Question

DeclaredAnswers = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Answers by implementation ("torch:sdpa"), question, and short dtype name."""

HEAD = """# Elections

Some questions have more than one right answer: what a row without keys gives, or what a causal flag
means together with a mask. The answer is implementation-defined: an implementation **elects** one,
declares it, and is judged by it. No answer is copied from documentation:
`attention-conformance report RESULTS... --table elections` shows what was observed in a run.

The first answer of every question is the one that the reference follows. A person's own function may
elect any answer ([function.md](../function.md)). What is none of the answers fails.

The page is made from `suite/spec/elections.py` and from the declarations of the adapters, for the CPU:

    attention-conformance elections > docs/data/elections.md

An implementation that a question does not name leaves its answer to be observed, or is not tested in it.
"""


def declared_answers(name: str) -> dict[str, dict[str, dict[str, str]]]:
    """Returns the declared answers of a backend's implementations (see `DeclaredAnswers`). Raises the
    errors of `registry.load`."""
    answers: dict[str, dict[str, dict[str, str]]] = {}
    for implementation in registry.implementations(registry.load(name)):
        for case in ELECTION_CASES:
            answer = implementation.declared_answer(case.question.name, case.dtype)
            same_operator = case.operator is implementation.operator
            if same_operator and answer is not None and implementation.unsupported(case) is None:
                questions = answers.setdefault(str(implementation), {})
                questions.setdefault(case.question.name, {})[case.dtype.name] = answer
    return answers


def page(answers: DeclaredAnswers) -> str:
    """Returns the page in Markdown, with a section for each question."""
    return "\n".join([HEAD, *(section(question, answers) for question in QUESTIONS.values())])


def section(question: Question, answers: DeclaredAnswers) -> str:
    """Returns a question in Markdown: its answers, and a table of the implementations that elect each
    answer."""
    options = ", ".join(f"`{answer}`" for answer in question.options)
    lines = [f"## {question.name}\n", f"{question.text}: {options}.\n"]
    electing = {answer: _electing(question, answer, answers) for answer in question.options}
    if any(electing.values()):
        lines += ["| answer | backend | implementations |", "|---|---|---|"]
        lines += [
            f"| {answer} | {backend} | {', '.join(names)} |"
            for answer, by_backend in electing.items()
            for backend, names in by_backend.items()
        ]
        lines.append("")
    return "\n".join(lines)


def _electing(
    question: Question, answer: str, declared_answers: DeclaredAnswers
) -> dict[str, list[str]]:
    """Returns the names of the implementations that elect an answer, by backend. If an implementation
    elects the answer in some dtypes only, these follow its name."""
    electing: dict[str, list[str]] = {}
    for implementation, questions in declared_answers.items():
        by_dtype = questions.get(question.name, {})
        dtypes = [name for name, declared in by_dtype.items() if declared == answer]
        if dtypes:
            backend, _, name = implementation.partition(":")
            suffix = f" ({', '.join(dtypes)})" if len(dtypes) < len(by_dtype) else ""
            electing.setdefault(backend, []).append(f"`{name}`{suffix}")
    return electing


@dataclass(frozen=True)
class ElectionsOptions(CommandOptions):
    """The options of `elections`."""

    backend: str = shared("backend", help="one backend's answers, as JSON", many=False)


def run(options: ElectionsOptions) -> int:
    """Run the command `elections`, and return its exit code."""
    try:
        if options.backend:
            print(json.dumps(declared_answers(options.backend)))
        else:
            print(page(_declared_in_processes(registry.installed())), end="")
    except (UsageError, BackendUnavailable, BrokenFramework) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _declared_in_processes(names: Iterable[str]) -> DeclaredAnswers:
    """Returns the declared answers of several backends, each loaded in its own process. Raises UsageError
    if a process fails."""
    answers: dict[str, Any] = {}
    for name in names:
        code, output = run_module(
            ["attention_conformance.suite", "elections", f"--backend={name}"], Path.cwd(), {}
        )
        if code:
            raise UsageError(f"`elections --backend={name}` fails (exit code {code}):\n{output}")
        answers |= json.loads(next(x for x in reversed(output.splitlines()) if x.startswith("{")))
    return answers
