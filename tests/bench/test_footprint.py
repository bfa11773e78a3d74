"""What the figures of a start and of an idle server are made of."""

from __future__ import annotations

import pytest

from bench import footprint


def test_a_program_costs_what_its_cheapest_run_did():
    (bare,) = footprint._least(2, ["-c", "pass"])
    assert bare.cpu_s > 0
    assert bare.wall_s > 0


def test_a_program_that_fails_is_no_figure():
    with pytest.raises(RuntimeError, match="ended with 3"):
        footprint._least(1, ["-c", "raise SystemExit(3)"])


def test_a_figure_over_its_limit_has_missed_it():
    assert footprint._within("help", 0.09, "s", footprint.HELP_S_MAX).met
    assert not footprint._within("help", 0.11, "s", footprint.HELP_S_MAX).met
