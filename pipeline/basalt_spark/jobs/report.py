"""What a job says when it is done: one row of facts, and tables of what it found. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from basalt_spark.jobs.truncation import Truncation

EXIT_DONE, EXIT_FAULT = 0, 1

Fact = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobReport:
    """`facts` are what people read first; `faults` say what is wrong, a sentence each; `tables` are named lists of rows."""

    job: str
    job_id: str
    facts: Fact
    faults: Sequence[str] = ()
    tables: Mapping[str, Sequence[Fact]] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        """In a word."""
        return "fault" if self.faults else "ok"

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        return EXIT_FAULT if self.faults else EXIT_DONE

    def with_truncation(self, truncated: Truncation | None) -> JobReport:
        """The same report, of a job that also truncated its topic; None: there was nothing to truncate."""
        before_ms, changed = (None, False) if truncated is None else truncated
        return replace(self, facts={**self.facts, "truncated": changed, "truncated_before_ms": before_ms})

    def row(self) -> dict[str, Any]:
        """All of it, for programs."""
        head = {"job": self.job, "job_id": self.job_id, "outcome": self.outcome}
        return {**head, **self.facts, "faults": list(self.faults), **{k: list(v) for k, v in self.tables.items()}}
