"""What each run has been given and has read, indexed for rules that ask where a value is from."""

from collections import OrderedDict
from typing import Final

from proctor.wire.words import StepKind
from proctor_kernel.core.commands import Question
from proctor_policy.origins import OriginIndex

RUNS_MAX: Final = 32
"""Runs whose index is kept, of some MB each when they have read much; the least recently asked is
built anew when a rule asks again."""


class Readings:
    """The index of each run, brought up to date when a rule asks."""

    def __init__(self) -> None:
        self._indexes: OrderedDict[str, tuple[OriginIndex, int]] = OrderedDict()

    def of(self, question: Question) -> OriginIndex:
        """Return the index of a run, with all that it has read before this call."""
        index, known = self._indexes.get(question.execution_id, (None, 0))
        if index is None or known > len(question.finished):
            index, known = OriginIndex(), 0
            index.add_input(question.input)
        for number in range(known, len(question.finished)):
            step = question.steps[question.finished[number]]
            if step.kind is StepKind.TOOL_CALL and step.result is not None:
                index.add_result(
                    step.result,
                    tool=step.target,
                    labels=frozenset(step.labels),
                    args=step.args,
                )
        self._indexes[question.execution_id] = (index, len(question.finished))
        self._indexes.move_to_end(question.execution_id)
        if len(self._indexes) > RUNS_MAX:
            self._indexes.popitem(last=False)
        return index
