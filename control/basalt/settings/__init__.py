"""The settings of a server: one frozen tree, read once from flags, environment and a TOML file.

`load_settings` reads it, `effective` shows it; the keys are in `basalt.settings.tree` and docs/reference/settings.md.
"""

from __future__ import annotations

from basalt.settings.auth import AuthSettings, CertSettings, JwtSettings, KerberosSettings, TlsSettings
from basalt.settings.kinds import DayWindow
from basalt.settings.sources import changed_settings, load_settings, read_settings
from basalt.settings.tree import (
    HBaseSettings,
    HttpSettings,
    JobSettings,
    JobsSettings,
    LogSettings,
    MessagingSettings,
    Origin,
    ServerSettings,
    Settings,
    StoreSettings,
    ThriftSettings,
    TransactionSettings,
    effective,
)

__all__ = [
    "AuthSettings", "CertSettings", "DayWindow", "HBaseSettings", "HttpSettings", "JobSettings", "JobsSettings", "JwtSettings", "KerberosSettings",
    "LogSettings", "MessagingSettings", "Origin", "ServerSettings", "Settings", "StoreSettings", "ThriftSettings", "TlsSettings", "TransactionSettings",
    "changed_settings", "effective", "load_settings", "read_settings",
]  # fmt: skip
