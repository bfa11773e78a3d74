"""The table of alerts: what each says, and that nothing in it stands for nothing."""

from __future__ import annotations

import pytest

from basalt.operations.alerts.expressions import HOUR_S
from basalt.operations.alerts.rules import ALERTS, DAY_S, WORDS_OF_VALUE, Alert, sentence, value_text, windows_s

# Labels that an alert's series have beside those of every target: the words that its text may use.
GROUP = {"namespace", "topic", "group"}
LABELS = {
    "BasaltCoprocessorOld": {"region_server", "version"},
    "BasaltGroupLags": GROUP,
    "BasaltMessagesParked": GROUP,
    "BasaltJobFails": {"name"},
    "BasaltServerDown": {"instance"},
    "BasaltServerFails": {"code"},
}


def test_no_two_alerts_have_one_name():
    names = [alert.name for alert in ALERTS]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_can_be_told(alert: Alert):
    words = set(WORDS_OF_VALUE.findall(alert.text))
    assert words - {"value"} <= LABELS.get(alert.name, set())
    assert alert.promql
    assert (alert.condition is None) == bool(alert.elsewhere)
    labels = dict.fromkeys(LABELS.get(alert.name, ()), "x")
    assert "?" not in sentence(alert, labels, 1.0)


def test_the_past_of_a_series_is_kept_for_the_longest_of_its_windows():
    assert windows_s()["basalt_transactions_total"] == HOUR_S
    assert windows_s()["basalt_http_problems_total"] == 300


def test_a_sentence_has_the_value_with_its_unit_and_the_names():
    lagging = next(alert for alert in ALERTS if alert.name == "BasaltGroupLags")
    labels = {"namespace": "shop", "topic": "orders", "group": "billing"}
    text = "The group billing of shop/orders is behind: its oldest message has waited for 15 min"
    assert sentence(lagging, labels, 900.0) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.25, "seconds", "250 ms"),
        (61, "seconds", "61 s"),
        (600, "seconds", "10 min"),
        (7_300, "seconds", "2 h"),
        (13 * DAY_S, "seconds", "13 d"),
        (0.08, "share", "8 %"),
        (12_345, "count", "12,345"),
    ],
)
def test_values_have_units(value, unit, text):
    assert value_text(value, unit) == text
