"""What the settings of servers on one store may be: whoever shares topics can be reached through any server."""

from __future__ import annotations

import pytest

from basalt.errors import InvalidSettingError
from basalt.server.wiring import check_sharing
from basalt.settings import Settings
from basalt.settings.cluster import ClusterSettings
from basalt.settings.tree import StoreSettings


def test_servers_on_one_store_share_its_topics_unless_they_are_told_not_to():
    assert Settings().cluster.share


def test_a_server_that_shares_topics_and_passes_nothing_on_is_refused():
    settings = Settings(store=StoreSettings(kind="hbase"), cluster=ClusterSettings(pass_on=False))
    with pytest.raises(InvalidSettingError, match=r"cluster\.pass_on") as raised:
        check_sharing(settings)
    assert "cluster.share to false" in (raised.value.hint or "")
    check_sharing(Settings(store=StoreSettings(kind="hbase"), cluster=ClusterSettings(share=False, pass_on=False)))


@pytest.mark.parametrize("kind", ["rocks", "memory"])
def test_a_store_of_one_process_refuses_nothing(kind: str):
    check_sharing(Settings(store=StoreSettings(kind=kind), cluster=ClusterSettings(pass_on=False)))  # type: ignore[arg-type]
