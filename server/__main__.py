"""`python -m server`: flags and environment → Settings → the server, in the foreground.

The one place that reads the environment: every setting is a flag `--like-this` or a variable
`ML_UDF_LIKE_THIS`; a flag wins.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints
from urllib.parse import parse_qsl, urlsplit

from gpu_worker.model_files.endpoints import AllowedEndpoints
from gpu_worker.wire.devices import check_device, device_names
from server.cache.choice import STORES, StoreMissing, choose_store
from server.capacity.policies.by_name import POLICIES as CAPACITY_POLICIES
from server.http.native.choice import FRONTS, FrontMissing, choose_front
from server.placement.policies.by_name import PLACEMENT_POLICIES
from server.scheduling.bulk_sharing import bulk_sharing_named
from server.scheduling.policies.by_name import POLICIES
from server.setting_files import read_setting
from server.settings import LAST_PORT, Settings, WorkerBounds, is_loopback, port_range

if TYPE_CHECKING:
    from server.http.tls import Tls

__all__ = ["main", "settings_from"]

_ENVIRONMENT = "ML_UDF_"
_SECRET_URLS = ("database_url", "parameters_url")  # each has its …_file
_HOST_NAME = re.compile(r"[0-9A-Za-z._-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]+")
_VARIABLE = re.compile(r"\s*(?:[A-Za-z_][A-Za-z0-9_]*)?\s*")
_KINDS = {bool: "on or off", int: "a whole number", float: "a number"}
_AUTO = {"answer_cache_bytes": -1}
# With 0 of these a server would start, and answer nothing.
_ABOVE_0 = (
    "default_max_batch",
    "default_slo_ms",
    "max_body_bytes",
    "max_connections",
    "max_input_bytes",
    "max_pixels",
    "max_reply_bytes",
    "max_rows",
    "worker_start_s",
)
_MOST_THREADS = 4096  # a worker that begins millions of them is never up
_SECRET_WORDS = ("password", "secret", "token", "key")


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
        elif hints[item.name] in (tuple[Path, ...], tuple[str, ...]):
            kind = "DIR" if hints[item.name] == tuple[Path, ...] else "NAME"
            parser.add_argument(flag, action="append", metavar=kind, help=text)
        else:
            parser.add_argument(flag, metavar=item.name.rpartition("_")[2].upper(), help=text)
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    values: dict[str, Any] = {}
    for item in fields(Settings):
        raw = given.get(item.name, environment.get(f"{_ENVIRONMENT}{item.name.upper()}"))
        if raw is not None:
            values[item.name] = _value(item.name, hints[item.name], raw)
    for name in _SECRET_URLS:
        _check_hidden(name, given.get(name, ""))
        values[name] = _url(name, values.get(name, ""), values.get(f"{name}_file"))
    settings = Settings(**values)
    _check(settings)
    return settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until told to stop. Exit status: 0 stopped, 2 settings, 3 could not start, 4 could not go on."""
    try:
        settings = settings_from(sys.argv[1:] if arguments is None else arguments, os.environ)
        token = _token(settings.token_file)
        ask_token = _token(settings.ask_token_file)
        if ask_token is not None and ask_token == token:
            raise SettingsError("--ask-token-file holds the token of --token-file; it must be another one")
        tls = _tls(settings)
        front = choose_front(settings.front, has_tls=tls is not None)
        choose_store(settings.answer_store)
        driver_environment = _driver_environment(settings, os.environ)
    except (SettingsError, FrontMissing, StoreMissing) as error:
        print(f"ml_udf server: {error}", file=sys.stderr)  # noqa: T201  # before there is a log
        return 2
    # Here, so that `--help` and a wrong setting answer at once. What is imported stays: collections that look
    # it over again and again would take a fifth of the start.
    gc.disable()
    from server.app import create_app
    from server.http.connection import ConnectionLimits
    from server.http.listener import Listener
    from server.observability.log import configure_logging
    from server.storage import StartError
    from server.workers.environment import worker_environment

    gc.enable()
    os.umask(0o077)  # what this process and its workers make is the owner's alone
    configure_logging(settings.log_level)
    for root in settings.media_root:
        if not root.expanduser().exists():
            logging.getLogger("ml_udf.server").warning(
                "a media root is not there: its files are found once it is path=%s", root
            )
    try:
        more = [name.strip() for name in settings.worker_env.split(",") if name.strip()]
        app = create_app(
            settings,
            token,
            ask_token,
            worker_environment(os.environ, more),
            worker_environment(os.environ, [*more, *driver_environment]),
        )
    except StartError as error:
        print(f"ml_udf server: {error}", file=sys.stderr)  # noqa: T201  # as above
        return 3
    listener = Listener(
        app.api,
        host=settings.host,
        port=settings.port,
        port_file=None if settings.port_file is None else settings.port_file.expanduser(),
        tls=tls,
        limits=ConnectionLimits(
            connections=settings.max_connections,
            held_bytes=settings.max_held_bytes,
            head_s=settings.head_timeout_s,
            idle_s=settings.idle_timeout_s,
            slow_s=settings.slow_timeout_s,
        ),
        native=front.name == "native",
    )
    try:
        listener.run()
    finally:
        if app.ended_by:
            print(f"ml_udf server: {app.ended_by}", file=sys.stderr)  # noqa: T201  # the last line says why
    return 4 if app.ended_by else 0


def _value(name: str, kind: Any, raw: Any) -> Any:  # noqa: ANN401  # a setting's type is data here
    if kind is WorkerBounds:
        try:
            return WorkerBounds.of(raw)
        except ValueError as exc:
            raise SettingsError(f"--{name} {exc}") from exc
    try:
        if kind is bool:
            return raw if isinstance(raw, bool) else _truth(raw)
        if kind is int:
            return _AUTO[name] if name in _AUTO and raw == "auto" else int(raw)
        if kind is float:
            return float(raw)
        if kind == tuple[Path, ...]:
            parts = raw if isinstance(raw, list) else [part for part in raw.split(os.pathsep) if part]
            return tuple(_value(name, Path, part) for part in parts)
        if kind == tuple[str, ...]:
            return tuple(raw if isinstance(raw, list) else raw.split())
        if kind is str:
            return raw
        return _path(raw)
    except ValueError as exc:
        raise SettingsError(
            f"--{name.replace('_', '-')} {raw!r} is not {_KINDS.get(kind, 'the path of a file or folder')}"
        ) from exc


def _path(text: str) -> Path:
    if not text:  # which is the folder that the server happens to run in, to `Path`
        raise ValueError(text)
    return Path(text)


def _truth(text: str) -> bool:
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"", "0", "false", "no", "off"}:
        return False
    raise ValueError(text)


def _check(settings: Settings) -> None:
    for item in fields(Settings):
        value = getattr(settings, item.name)
        if isinstance(value, bool) or value == _AUTO.get(item.name):
            continue
        if isinstance(value, int | float) and not value >= 0:
            raise SettingsError(f"--{item.name.replace('_', '-')} cannot be {value}")
        if isinstance(value, int) and value > sys.maxsize:
            raise SettingsError(
                f"--{item.name.replace('_', '-')} cannot be {value}: {sys.maxsize} is the most"
            )
    for name in ("default_slo_ms", "dataset_timeout_s"):  # functions are bounded, and databases too
        if getattr(settings, name) == float("inf"):
            raise SettingsError(f"--{name.replace('_', '-')} cannot be inf")
    if settings.port > LAST_PORT:  # the system would take what is left of it below 65,536
        raise SettingsError(f"--port cannot be {settings.port}: {LAST_PORT} is the last one")
    for name in _ABOVE_0:
        if not getattr(settings, name):
            raise SettingsError(f"--{name.replace('_', '-')} must be more than 0")
    if settings.shadow_share > 1:
        raise SettingsError(f"--shadow-share cannot be {settings.shadow_share}: it is a share, 1 at the most")
    if settings.threads > _MOST_THREADS:
        raise SettingsError(f"--threads cannot be {settings.threads}: {_MOST_THREADS} is the most")
    for device in device_names(settings.device):
        try:
            check_device(device)
        except ValueError as exc:
            raise SettingsError(f"--device: {exc}") from exc
    if settings.precision not in ("auto", "float32"):
        raise SettingsError(f"--precision {settings.precision!r} is not known; known: auto, float32")
    if settings.pool not in ("local", "ray"):
        raise SettingsError(f"--pool must be local or ray, not {settings.pool!r}")
    if settings.ray_address and settings.pool != "ray":
        raise SettingsError("--ray-address is of --pool ray; give both")
    if settings.shared_folder and settings.pool != "ray":
        raise SettingsError("--shared-folder is of --pool ray; give both")
    try:
        port_range(settings.node_ports)
    except ValueError as exc:
        raise SettingsError(f"--node-ports: {exc}") from exc
    if not settings.node_folder.startswith(("/", "~/")):
        raise SettingsError(f"--node-folder must begin with / or ~/, not {settings.node_folder!r}")
    if settings.max_feedback_labels < settings.max_rows:
        raise SettingsError(
            f"--max-feedback-labels {settings.max_feedback_labels} is less than one request may bring, "
            f"--max-rows {settings.max_rows}: a request that is sent again would count twice"
        )
    if settings.front not in FRONTS:
        raise SettingsError(f"--front {settings.front!r} is not known; known: {', '.join(FRONTS)}")
    if settings.answer_store not in STORES:
        raise SettingsError(
            f"--answer-store {settings.answer_store!r} is not known; known: {', '.join(STORES)}"
        )
    if settings.log_level.upper() not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
        raise SettingsError("--log-level must be debug, info, warning or error")
    wrong = [name for name in settings.allowed_host if not _HOST_NAME.fullmatch(name)]
    if wrong:
        raise SettingsError(
            f"--allowed-host {wrong[0]!r} is not the name of a host, alone: photos.example.org"
        )
    wrong = [name for name in settings.worker_env.split(",") if not _VARIABLE.fullmatch(name)]
    if wrong and settings.worker_env:
        raise SettingsError(f"--worker-env: {wrong[0]!r} is not the name of a variable; write A,B")
    policy = settings.default_policy
    if ":" not in policy and policy not in POLICIES:
        raise SettingsError(f"--default-policy {policy!r} is not known; known: {', '.join(POLICIES)}")
    if ":" not in settings.placement and settings.placement not in PLACEMENT_POLICIES:
        known = ", ".join(PLACEMENT_POLICIES)
        raise SettingsError(f"--placement {settings.placement!r} is not known; known: {known}")
    try:
        bulk_sharing_named(settings.bulk_sharing)
    except ValueError as exc:
        raise SettingsError(f"--bulk-sharing: {exc}") from exc
    capacity = settings.capacity_policy
    if ":" not in capacity and capacity not in CAPACITY_POLICIES:
        known = ", ".join(CAPACITY_POLICIES)
        raise SettingsError(f"--capacity-policy {capacity!r} is not known; known: {known}")
    named_policies = (
        ("default-policy", policy),
        ("placement", settings.placement),
        ("capacity-policy", capacity),
    )
    for flag, named in named_policies:
        if ":" in named and not settings.allow_import:
            raise SettingsError(
                f"--{flag} {named!r} is an import path, which runs code; give --allow-import to permit it"
            )
    wrong_roots = [root for root in settings.media_root if root.exists() and not root.is_dir()]
    if wrong_roots:
        raise SettingsError(f"--media-root {wrong_roots[0]} is not a folder")
    for name in ("port_file", "answer_cache_file"):  # both are written beside, and put in their place
        path: Path | None = getattr(settings, name)
        if path is not None and path.expanduser().exists() and not path.expanduser().is_file():
            raise SettingsError(f"--{name.replace('_', '-')} {path} is not a regular file")
    try:
        AllowedEndpoints(settings.allow_remote, allow_plain=settings.allow_remote_plain)
    except ValueError as exc:
        raise SettingsError(f"--allow-remote: {exc}") from exc
    _check_access(settings)


def _check_access(settings: Settings) -> None:
    if settings.ask_class not in ("interactive", "bulk"):
        raise SettingsError("--ask-class must be interactive or bulk")
    if settings.variants not in ("auto", "off"):
        raise SettingsError(f"--variants must be auto or off, not {settings.variants!r}")
    if settings.default_visibility not in ("public", "private"):
        raise SettingsError("--default-visibility must be public or private")
    if settings.ask_token_file is not None and settings.token_file is None:
        raise SettingsError("--ask-token-file is a second token; give the first too: --token-file FILE")
    if settings.tls_cert is None and (settings.tls_key or settings.tls_client_ca) is not None:
        raise SettingsError("--tls-key and --tls-client-ca need the certificate, --tls-cert FILE")
    if is_loopback(settings.host):
        return
    if settings.tls_cert is None and not settings.allow_plain:
        raise SettingsError(
            f"refusing to listen on {settings.host} without TLS: the token and all rows could be read on the "
            "way. Give --tls-cert and --tls-key, or, where a proxy does TLS, --allow-plain"
        )


def _check_hidden(name: str, url: str) -> None:
    """A command line is for every user of the machine to read. Raises `SettingsError` without the URL."""
    try:
        parts = urlsplit(url)
        has_secret = bool(parts.password) or any(
            word in key.lower() for key, _ in parse_qsl(parts.query) for word in _SECRET_WORDS
        )
    except ValueError:
        has_secret = "@" in url
    if has_secret:
        flag = f"--{name.replace('_', '-')}"
        raise SettingsError(
            f"{flag} holds a secret, which every user of this machine can read there: "
            f"put the URL into a file and give {flag}-file FILE"
        )


def _url(name: str, url: str, path: Path | None) -> str:
    """A URL as it was given, or as its file holds it."""
    if path is None:
        return url
    flag = f"--{name.replace('_', '-')}"
    if url:
        raise SettingsError(f"{flag} and {flag}-file say the same thing; give one of them")
    try:
        text = read_setting(path).strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"the file of {flag}-file, {path}, cannot be read: {exc}") from exc
    if not text or len(text.split()) != 1:
        raise SettingsError(f"the file of {flag}-file, {path}, must hold one URL and nothing else")
    return text


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = read_setting(path).strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"the token file {path} cannot be read: {exc}") from exc
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(
            f"the token file {path} must hold one word of 16 or more printable ASCII characters"
        )
    return token


def _driver_environment(settings: Settings, environment: Mapping[str, str]) -> list[str]:
    """Names of what the process needs that speaks to the cluster. Raises `SettingsError`.

    Whoever reaches a Ray cluster that asks for no token can run anything on every node of it.
    """
    if settings.pool != "ray":
        return []
    if environment.get("RAY_AUTH_MODE") != "token":
        raise SettingsError(
            "--pool ray needs a cluster that asks for its token: set RAY_AUTH_MODE=token for this server and "
            "for every `ray start` of the cluster, and give all of them the same token (RAY_AUTH_TOKEN_PATH)"
        )
    if importlib.util.find_spec("ray") is None:
        raise SettingsError("--pool ray needs Ray, which is not installed: pip install 'ml_udf[ray]'")
    return [name for name in environment if name.startswith("RAY_")]


def _tls(settings: Settings) -> Tls | None:
    if settings.tls_cert is None:
        return None
    from server.http.tls import Tls, TlsError, TlsFiles  # the parser of certificates is not light

    key, client_ca = settings.tls_key, settings.tls_client_ca
    files = TlsFiles(
        settings.tls_cert.expanduser(),
        None if key is None else key.expanduser(),
        None if client_ca is None else client_ca.expanduser(),
    )
    try:
        return Tls.read(files)
    except TlsError as exc:
        raise SettingsError(str(exc)) from exc


def _shown(default: object) -> str:
    if default is MISSING or default is None or default in ("", ()):
        return "none"
    return str(default)


if __name__ == "__main__":
    sys.exit(main())
