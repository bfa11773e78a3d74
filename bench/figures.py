"""A figure: a value, the yardstick that it stands next to, and the ratio that was promised."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class Figure:
    """`target` is the ratio promised: at least so much for rates, at most for times and sizes (`at_most`)."""

    name: str
    value: float
    unit: str
    yardstick: str
    yardstick_value: float
    target: float
    at_most: bool = False
    cpu_us: float | None = None  # server processor time per message (or per call, for figures about calls)
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.value / self.yardstick_value

    @property
    def met(self) -> bool:
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target

    def json_line(self) -> str:
        return msgspec.json.encode({**asdict(self), "ratio": round(self.ratio, 3), "met": self.met}).decode()


def table(figures: list[Figure]) -> str:
    rows = [("figure", "value", "yardstick", "ratio", "target", "", "CPU/msg")]
    for figure in figures:
        sign = "<=" if figure.at_most else ">="
        rows.append(
            (
                figure.name,
                f"{figure.value:,.5g} {figure.unit}",
                f"{figure.yardstick_value:,.5g} {figure.yardstick}",
                f"{figure.ratio:.2f}",
                f"{sign} {figure.target:g}",
                "ok" if figure.met else "MISSED",
                "" if figure.cpu_us is None else f"{figure.cpu_us:.2f} us",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
