"""What is asked of a user's function beside its time: forbidden calls (`--forbid`), an empty kernel
(`--kernel`)."""

from __future__ import annotations

from dataclasses import dataclass

from backends.protocol import Implementation
from suite.judge.cell import Cell
from suite.measure.protocol import RefusedTime
from suite.spec.vocabulary import VALUES


@dataclass(frozen=True)
class OwnCode:
    """What a timed user's function is asked besides.

    - `trip`: seconds of an empty sample in the child that runs the function
    - `watched`: the function, which raises ForbiddenCall for calls that `--forbid` names
    - `empty`: the function with an empty `kernel`
    - `notes`: the limits that this system does not enforce, as sentences
    """

    trip: float = 0.0
    watched: Implementation | None = None
    empty: Implementation | None = None
    kernel: str = ""
    notes: tuple[str, ...] = ()

    def judge_kernel(self, cell: Cell) -> None:
        """Raise RefusedTime "without-kernel" if the answer to a cell's case is right although the kernel
        is empty."""
        if self.empty is None:
            return
        from suite.checks import all_checks
        from suite.judge.judge import Policy
        from suite.run.steps import right_without

        values = all_checks()[VALUES]
        without = Cell(values, cell.case, self.empty, cell.seed)
        message = right_without(self.kernel, without, Policy())
        if message:
            raise RefusedTime("without-kernel", message)
