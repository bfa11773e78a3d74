"""The settings on a page: value, origin, meaning and default of each, and no secret."""

from __future__ import annotations

from tests.control.console.conftest import BOOTSTRAP

PATH = "/console/settings"


def test_a_setting_is_found_with_its_value_origin_meaning_and_default(signed_in):
    ada = signed_in("ada", ("inspect", "cluster"))
    page = ada.page(f"{PATH}?q=Refresh_MS")
    assert "console.refresh_ms 5s default how often an open page renews what changes" in page.text.replace("5000", "5s")
    assert "http.body_bytes_max" not in page.text
    assert "http.body_bytes_max" in ada.page(PATH).text
    assert "No setting has that" in ada.page(f"{PATH}?q=nothing%20like%20it").text
    assert "console.refresh_ms" not in ada.page(f"{PATH}?changed=true").text


def test_no_secret_is_on_it_and_who_may_not_inspect_sees_none(signed_in):
    assert BOOTSTRAP not in signed_in("ada", ("inspect", "cluster")).get(PATH).body.decode()
    assert "token:eve may not inspect cluster" in signed_in("eve").page(PATH).text
