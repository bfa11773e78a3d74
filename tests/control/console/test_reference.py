"""The settings and the calls on pages: each with what it means, and a search that needs no script."""

from __future__ import annotations

import click
import pytest

from basalt.cli.root import root as root_command
from basalt.console.copy_lines import COMMANDS
from basalt.console.pages.reference import FURTHER_COMMANDS, described
from basalt.http.app import OPERATIONS
from tests.control.console.conftest import BOOTSTRAP

SETTINGS = "/console/settings"
PATH = "/console/api"


def test_every_call_is_there_once_with_an_anchor_of_its_own(browser, api):
    document = api("GET", "/openapi.json")
    found = list(described(document))
    assert {(each.method, each.path) for each in found} == {(each.method, each.path) for each in OPERATIONS}
    page = browser.page(PATH)
    anchors = [each["id"] for each in page.all("article")]
    assert len(anchors) == len(set(anchors)) == len(found)
    assert f"{len(found)} calls." in page.text


def test_a_call_has_its_rights_and_its_command(browser):
    page = browser.page(f"{PATH}?q=GET%20/v1/admin/audit")
    assert len(page.all("article")) == 1
    assert "Rights inspect cluster" in page.text
    assert "basalt audit list [--from @{from}]" in page.text
    assert "[--dry-run]" in browser.page(f"{PATH}?q=POST%20admin/grants").text
    assert "only acts before this time" in page.text
    assert (
        "Rights by its body; of what the query or the body names: grant *"
        in browser.page(f"{PATH}?q=admin/grants").text
    )
    assert "none: it is public" in browser.page(f"{PATH}?q=livez").text


def test_the_search_is_of_all_words_in_any_case(browser):
    page = browser.page(f"{PATH}?q=TOKEN%20rotate")
    assert [each["id"] for each in page.all("article")] == ["post--v1-admin-tokens--token--rotate"]
    assert "No call has all of these words." in browser.page(f"{PATH}?q=%3Cscript%3E").text


def test_a_setting_is_found_with_its_value_origin_meaning_and_default(signed_in):
    ada = signed_in("ada", ("inspect", "cluster"))
    page = ada.page(f"{SETTINGS}?q=Refresh_MS")
    assert "console.refresh_ms 5s default how often an open page renews what changes" in page.text.replace("5000", "5s")
    assert "http.body_bytes_max" not in page.text
    assert "http.body_bytes_max" in ada.page(SETTINGS).text
    assert "No setting has that" in ada.page(f"{SETTINGS}?q=nothing%20like%20it").text
    assert "console.refresh_ms" not in ada.page(f"{SETTINGS}?changed=true").text


def test_no_secret_is_on_it_and_who_may_not_inspect_sees_none(signed_in):
    assert BOOTSTRAP not in signed_in("ada", ("inspect", "cluster")).get(SETTINGS).body.decode()
    assert "token:eve may not inspect cluster" in signed_in("eve").page(SETTINGS).text


def test_a_call_that_a_page_makes_has_its_command_in_one_place():
    assert {key for key, template in COMMANDS.items() if template} & FURTHER_COMMANDS.keys() == set()


@pytest.mark.parametrize(("method", "path"), FURTHER_COMMANDS)
def test_every_further_command_is_one_and_belongs_to_a_call(method, path):
    assert (method, path) in {(each.method, each.path) for each in OPERATIONS}
    words = FURTHER_COMMANDS[method, path].partition("{")[0].partition("--")[0].split()
    command: click.Command = root_command
    for word in words:
        assert isinstance(command, click.Group), words
        command = (
            command.commands[word] if word in command.commands else command.get_command(click.Context(command), word)
        )
        assert command is not None, words
    assert not isinstance(command, click.Group)
