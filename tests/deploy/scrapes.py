"""Scrapes of a real server, as Prometheus gets them, and what expressions ask of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

Labels = dict[str, str]
Scrape = Mapping[str, list[tuple[Labels, float]]]  # by the name of the sample

TARGET = {"job": "basalt", "instance": "a:4780"}  # what Prometheus adds to every series
PROMETHEUS_OWN = {"up", "ALERTS"}
OF_HBASE = ("basalt_leader", "basalt_cluster_", "basalt_hbase_", "basalt_region_", "basalt_coprocessor_")
_SELECTOR = re.compile(r"(?<![:\w\"])((?:basalt|process)_\w+|up|ALERTS)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|ignoring|on)\s*\(([^)]*)\)")
_LEGEND = re.compile(r"\{\{(\w+)\}\}")


class Matcher(NamedTuple):
    """What a selector asks of one label."""

    label: str
    operator: str
    value: str

    def takes(self, value: str) -> bool:
        """Whether a series with this value is chosen."""
        equal = re.fullmatch(self.value, value) is not None if "~" in self.operator else self.value == value
        return equal != self.operator.startswith("!")


class Selector(NamedTuple):
    """A name of an expression, and what its labels must be."""

    name: str
    matchers: tuple[Matcher, ...]

    def found(self, scrape: Scrape) -> list[Labels]:
        """The labels of the series that it chooses."""
        matchers = [each for each in self.matchers if each.label not in TARGET]
        return [
            labels
            for labels, _ in scrape.get(self.name, ())
            if all(each.takes(labels[each.label]) if each.label in labels else False for each in matchers)
        ]


def parsed(text: str) -> Scrape:
    """What a server answered."""
    samples: defaultdict[str, list[tuple[Labels, float]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name].append((dict(sample.labels), sample.value))
    return samples


def selectors(expression: str) -> Iterator[Selector]:
    """The series of a server that an expression reads."""
    for name, chosen in _SELECTOR.findall(expression):
        yield Selector(name, tuple(Matcher(*each) for each in _MATCHER.findall(chosen)))


def is_of_hbase(expression: str) -> bool:
    """Whether it reads a series that only a server on HBase has."""
    return any(each.name.startswith(OF_HBASE) for each in selectors(expression))


def unknown(expression: str, scrape: Scrape, legend: str = "") -> list[str]:
    """What the expression and its legend name that no series of the scrape has."""
    missing: list[str] = []
    labels = set(TARGET) | {"le"}
    for selector in selectors(expression):
        found = selector.found(scrape)
        labels.update(label for each in found for label in each)
        if not found and selector.name not in PROMETHEUS_OWN:
            missing.append(f"{selector.name} {[''.join(each) for each in selector.matchers]}")
    asked = [label.strip() for group in _GROUPING.findall(expression) for label in group.split(",")]
    return missing + [label for label in (*asked, *_LEGEND.findall(legend)) if label not in labels]


def series(name: str, labels: Labels) -> str:
    """A series in Prometheus' words."""
    escaped = {key: value.replace("\\", "\\\\").replace('"', '\\"') for key, value in {**labels, **TARGET}.items()}
    return f"{name}{{{', '.join(f'{key}={chr(34)}{value}{chr(34)}' for key, value in escaped.items())}}}"
