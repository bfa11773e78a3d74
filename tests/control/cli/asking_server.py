"""A server that asks who calls, and commands of several callers against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from basalt.server.wiring import RunningServices, open_services
from basalt.settings import load_settings
from tests.control.cli.conftest import Ran, Run, served

BOOTSTRAP = "b" * 40
As = Callable[..., Ran]


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[str]:
    """The URL of a server on a memory store where the one credential is the first token."""
    file = tmp_path / "bootstrap"
    file.write_text(BOOTSTRAP)
    file.chmod(0o600)

    async def opened() -> RunningServices:
        settings = ["store.kind=memory", "auth.kinds=token", f"auth.bootstrap_token_file={file}"]
        services = await open_services(load_settings(settings), None)
        await services.scheduler.start()
        return services

    with served(opened) as url:
        yield url


@pytest.fixture
def root(run: Run, asking: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run`, as the operator who has the first token, in the namespace shop."""
    monkeypatch.setenv("BASALT_URL", asking)
    monkeypatch.setenv("BASALT_NAMESPACE", "shop")
    monkeypatch.setenv("BASALT_TOKEN", BOOTSTRAP)
    return run


@pytest.fixture
def sent_by(root: Run, monkeypatch: pytest.MonkeyPatch) -> As:
    """`sent_by(token, "topic", "list")`: a command of whoever has this token; None: of nobody."""

    def ran(token: str | None, *arguments: str, stdin: bytes = b"") -> Ran:
        with monkeypatch.context() as patch:
            if token is None:
                patch.delenv("BASALT_TOKEN")
            else:
                patch.setenv("BASALT_TOKEN", token)
            return root(*arguments, stdin=stdin)

    return ran
