"""The settings that change while the server runs: each change in the audit, and all of them in force at once or none.

Which can is declared in `settings.tree` (`LIVE`). Most are read where they are used, from the settings of the services; the
parts that hold a copy are told here.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from typing import TypeAlias

from basalt.api.bodies.operations import ChangedSetting, ChangedSettings
from basalt.messaging.messages import Messages
from basalt.messaging.read.log_reader import SliceLimits
from basalt.operations.audit import Audit, By
from basalt.operations.scheduler import Scheduler
from basalt.pruning.prune import Pruner
from basalt.settings import Settings, changed_settings, effective
from basalt.settings.tree import keys, value_of

Apply: TypeAlias = Callable[[], Awaitable[None]]


async def change(
    before: Settings, asked: Mapping[str, object], by: By, *, audit: Audit, use: Callable[[Settings], None], dry_run: bool
) -> ChangedSettings:  # fmt: skip
    """Change the settings that are asked for, once each has its line in the audit; an error, and none of them.

    `InvalidSettingError` for what is no setting or no value of it, `SettingNeedsStartError` for one that is not live.
    """
    after = changed_settings(before, asked)
    changes = _changes(before, after, asked)

    async def apply() -> None:
        use(after)

    if not dry_run:
        noted: Apply = apply
        for each in changes:
            noted = _noted(audit, by, each, noted)
        await noted()
    return ChangedSettings(changes)


def put_in_force(before: Settings, after: Settings, messaging: Messages, scheduler: Scheduler, pruner: Pruner) -> None:
    """Tell the parts that hold a copy of a setting."""
    if after.log.level != before.log.level:  # where the server lives in another program, the level is that program's
        logging.getLogger().setLevel(after.log.level.upper())
    if after.log.levels != before.log.levels:
        set_levels(after.log.levels, before.log.levels)
    messaging.limits = SliceLimits(after.messaging.fetch_messages_max, after.messaging.fetch_bytes_max)
    pruner.window = after.jobs.prune.window
    for job in fields(after.jobs):
        scheduler.change(job.name.replace("_", "-"), getattr(after.jobs, job.name))


def set_levels(levels: Sequence[str], before: Sequence[str] = ()) -> None:
    """Give loggers levels of their own, as `log.levels` has them; those that had one before have `log.level` again."""
    for name in (each.partition("=")[0] for each in before):
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, _, level in (each.partition("=") for each in levels):
        logging.getLogger(name).setLevel(level.upper())


def _changes(before: Settings, after: Settings, asked: Mapping[str, object]) -> tuple[ChangedSetting, ...]:
    """Each setting that is asked for, as it was and as it will be, with its line in a settings file."""
    old, new = ({each.key: each.value for each in effective(settings)} for settings in (before, after))
    changes = []
    for key in (keys()[name] for name in asked):
        section, _, last = key.name.rpartition(".")
        line = f"{last} = {key.kind.toml(value_of(after, key))}"
        changes.append(ChangedSetting(key.name, old[key.name], new[key.name], f"[{section}]", line))
    return tuple(changes)


def _noted(audit: Audit, by: By, change: ChangedSetting, apply: Apply) -> Apply:
    told = f"{change.before} became {change.value}"
    return lambda: audit.act("set", f"setting {change.key}", *by, apply, lambda _: told)
