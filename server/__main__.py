"""`python -m server`: flags and environment → Settings → the server, in the foreground.

The one place that reads the environment: every setting is a flag `--like-this` or a variable
`ML_UDF_LIKE_THIS`; a flag wins.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

from server.settings import Settings, is_loopback

__all__ = ["main", "settings_from"]

_ENVIRONMENT = "ML_UDF_"


class SettingsError(Exception):
    """A setting that cannot be used; the text says which and what to do."""


def settings_from(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """The settings of flags and variables. Raises `SettingsError`; exits for `--help` and unknown flags."""
    hints = get_type_hints(Settings)
    parser = argparse.ArgumentParser(
        prog="python -m server",
        description="The ml_udf inference server.",
        epilog="Each flag may also be given as ML_UDF_NAME in the environment; the flag wins.",
        allow_abbrev=False,
    )
    for item in fields(Settings):
        flag = f"--{item.name.replace('_', '-')}"
        text = f"{item.metadata['help']} (default: {_shown(item.default)})".replace("%", "%%")
        if hints[item.name] is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=text)
        elif hints[item.name] == tuple[Path, ...]:
            parser.add_argument(flag, action="append", metavar="DIR", help=text)
        else:
            parser.add_argument(flag, metavar=item.name.rpartition("_")[2].upper(), help=text)
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    values: dict[str, Any] = {}
    for item in fields(Settings):
        raw = given.get(item.name, environment.get(f"{_ENVIRONMENT}{item.name.upper()}"))
        if raw is not None:
            values[item.name] = _value(item.name, hints[item.name], raw)
    settings = Settings(**values)
    _check(settings)
    return settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until told to stop. Exit status: 0 stopped, 2 settings, 3 could not start, 4 could not go on."""
    try:
        settings = settings_from(sys.argv[1:] if arguments is None else arguments, os.environ)
        token = _token(settings)
    except SettingsError as error:
        print(f"ml_udf server: {error}", file=sys.stderr)  # noqa: T201  # before there is a log
        return 2
    # Here, so that `--help` and a wrong setting answer at once.
    from server.app import create_app
    from server.listener import Listener
    from server.log import configure_logging
    from server.storage import StartError

    configure_logging(settings.log_level)
    try:
        app = create_app(settings, token)
    except StartError as error:
        print(f"ml_udf server: {error}", file=sys.stderr)  # noqa: T201  # as above
        return 3
    listener = Listener(
        app.front, app.drain, host=settings.host, port=settings.port, port_file=settings.port_file
    )
    listener.run()
    if app.ended_by:
        print(f"ml_udf server: {app.ended_by}", file=sys.stderr)  # noqa: T201  # the last line says why
        return 4
    return 0


def _value(name: str, kind: Any, raw: Any) -> Any:  # noqa: ANN401  # a setting's type is data here
    try:
        if kind is bool:
            return raw if isinstance(raw, bool) else _truth(raw)
        if kind is int:
            return int(raw)
        if kind is float:
            return float(raw)
        if kind == tuple[Path, ...]:
            parts = raw if isinstance(raw, list) else [part for part in raw.split(os.pathsep) if part]
            return tuple(Path(part) for part in parts)
        if kind is str:
            return raw
        return Path(raw)
    except ValueError as exc:
        raise SettingsError(
            f"--{name.replace('_', '-')} {raw!r} is not {getattr(kind, '__name__', kind)}"
        ) from exc


def _truth(text: str) -> bool:
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"", "0", "false", "no", "off"}:
        return False
    raise ValueError(text)


def _check(settings: Settings) -> None:
    for item in fields(Settings):
        value = getattr(settings, item.name)
        if isinstance(value, int | float) and not isinstance(value, bool) and not value >= 0:
            raise SettingsError(f"--{item.name.replace('_', '-')} cannot be {value}")
    for name in ("workers", "max_rows", "max_body_bytes", "default_max_batch", "default_slo_ms"):
        if not getattr(settings, name):
            raise SettingsError(f"--{name.replace('_', '-')} must be more than 0")
    if settings.log_level.upper() not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
        raise SettingsError("--log-level must be debug, info, warning or error")
    if settings.token_file is None and not is_loopback(settings.host):
        raise SettingsError(
            f"refusing to listen on {settings.host} without a token: whoever reaches it could run "
            "and change models and read images. Give --token-file FILE, or listen on 127.0.0.1"
        )


def _token(settings: Settings) -> str | None:
    if settings.token_file is None:
        return None
    try:
        token = settings.token_file.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"the token file {settings.token_file} cannot be read: {exc}") from exc
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(
            f"the token file {settings.token_file} must hold one word of 16 or more printable "
            "ASCII characters"
        )
    return token


def _shown(default: object) -> str:
    if default is MISSING or default is None or default in ("", ()):
        return "none"
    return str(default)


if __name__ == "__main__":
    sys.exit(main())
