"""The words of the console mean what the glossary says, and each link to one finds it."""

from __future__ import annotations

import re
from pathlib import Path

from basalt.console.terms import STATES, TERMS
from basalt.transactions.rules.transaction import State

GLOSSARY = Path(__file__).parents[3] / "docs" / "glossary.md"


def test_a_word_means_on_the_pages_what_the_glossary_says():
    rows = dict(re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", GLOSSARY.read_text(), re.MULTILINE))
    plain = {
        word: re.sub(r"\[(.+?)\]\(.+?\)", r"\1", text).replace("*", "").replace("`", "") for word, text in rows.items()
    }
    assert {word: plain.get(word) for word in TERMS} == TERMS


def test_every_state_of_a_transaction_that_a_page_shows_is_told():
    assert {"OPEN", "COMMITTING", "ABORTING"} <= {state.name for state in State} & set(STATES)


def test_each_word_has_a_place_that_a_link_finds(browser):
    page = browser.page("/console/terms")
    places = {each["id"] for each in page.all("dt") if "id" in each}
    assert {"lag", "invalid-list", "open"} <= places
    assert len(places) == len(TERMS) + len(STATES)


def test_who_has_to_sign_in_first_is_sent_there(asked):
    reply = asked.call("GET", "/console/terms")
    assert (reply.status, reply.header("location")) == (303, "/console/login?next=%2Fconsole%2Fterms")
