"""Settings: one place, documented, and none that opens a door by accident."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from pathlib import Path

import pytest

from server import setting_files
from server.__main__ import SettingsError, main, settings_from
from server.app import create_app
from server.settings import Settings, is_loopback
from server.storage import StartError
from tests.certificates import Certificates

CONFIGURATION = Path(__file__).parents[3] / "docs" / "configuration.md"


@pytest.mark.parametrize(("name", "text"), [(item.name, item.metadata["help"]) for item in fields(Settings)])
def test_every_setting_stands_in_the_documentation_with_its_help(name: str, text: str) -> None:
    documented = CONFIGURATION.read_text()
    assert f"`--{name.replace('_', '-')}`" in documented
    assert text in documented


def test_the_documentation_names_no_setting_that_there_is_not() -> None:
    section = CONFIGURATION.read_text().partition("## The server")[2].partition("\n## ")[0]
    known = {f"--{item.name.replace('_', '-')}" for item in fields(Settings)}
    assert set(re.findall(r"^\| `(--[a-z-]+)`", section, re.MULTILINE)) == known


def test_a_flag_wins_over_the_environment_and_both_over_the_default() -> None:
    assert settings_from([], {}).port == 8080
    assert settings_from([], {"ML_UDF_PORT": "9"}).port == 9
    assert settings_from(["--port", "7"], {"ML_UDF_PORT": "9"}).port == 7


def test_folders_may_be_repeated_or_listed() -> None:
    assert settings_from(["--media-root=/a", "--media-root=/b"], {}).media_root == (Path("/a"), Path("/b"))
    assert settings_from([], {"ML_UDF_MEDIA_ROOT": "/a:/b"}).media_root == (Path("/a"), Path("/b"))


def test_a_switch_is_a_flag_and_a_word() -> None:
    assert settings_from(["--allow-import"], {}).allow_import
    assert settings_from([], {"ML_UDF_ALLOW_IMPORT": "yes"}).allow_import
    assert not settings_from(["--no-allow-import"], {"ML_UDF_ALLOW_IMPORT": "1"}).allow_import


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port=many"], "--port 'many' is not a whole number"),
        (["--port=99999"], "--port cannot be 99999: 65535 is the last one"),
        (["--head-timeout-s=soon"], "--head-timeout-s 'soon' is not a number"),
        (["--default-policy=fastest"], "--default-policy 'fastest' is not known; known: goodput, greedy"),
        (["--default-policy=mine:Policy"], "--default-policy 'mine:Policy' is an import path"),
        (
            ["--bulk-sharing=some"],
            "--bulk-sharing: bulk sharing 'some' is not known; known: backfill",
        ),
        (["--placement=mine:Policy"], "--placement 'mine:Policy' is an import path"),
        (["--allowed-host=http://photos.example"], "is not the name of a host"),
        (["--allowed-host=photos.example:8080"], "is not the name of a host"),
        (["--worker-env=A B"], "'A B' is not the name of a variable"),
        (["--worker-env=A,B=1"], "'B=1' is not the name of a variable"),
        ([f"--media-root={__file__}"], "is not a folder"),
        (["--media-root="], "--media-root '' is not the path of a file or folder"),
        (["--home="], "--home '' is not the path of a file or folder"),
        (["--device=cpu,gpu"], "the device 'gpu' is not known: use 'auto', 'cpu', 'cuda:N' or sim:BYTES"),
        (["--workers=all"], "--workers 'all' is not a number of workers; write N, MIN:MAX"),
        (["--capacity-policy=fast"], "known: static, "),
        (["--workers=5000000"], "--workers '5000000' is more than 1,024 workers, each of which is a process"),
        (["--workers=1:1025"], "--workers '1:1025' is more than 1,024 workers"),
        (["--workers=4:1"], "--workers '4:1' is at least 4 and at most 1; write 1:4"),
        (["--max-feedback-labels=0"], "a request that is sent again would count twice"),
        (["--drain-s=-1"], "--drain-s cannot be -1"),
        (["--drain-s=nan"], "--drain-s cannot be nan"),
        (["--default-slo-ms=inf"], "--default-slo-ms cannot be inf"),
        (["--dataset-timeout-s=inf"], "--dataset-timeout-s cannot be inf"),
        (["--answer-cache-bytes=9223372036854775808"], "--answer-cache-bytes cannot be 9223372036854775808"),
        (["--log-level=loud"], "--log-level"),
        (["--max-connections=0"], "--max-connections must be more than 0"),
        (["--max-input-bytes=0"], "--max-input-bytes must be more than 0"),
        (["--max-pixels=0"], "--max-pixels must be more than 0"),
        (["--max-reply-bytes=0"], "--max-reply-bytes must be more than 0"),
        (["--worker-start-s=0"], "--worker-start-s must be more than 0"),
        (["--shadow-share=1.5"], "--shadow-share cannot be 1.5: it is a share"),
        (["--threads=100000"], "--threads cannot be 100000: 4096 is the most"),
    ],
)
def test_a_setting_that_cannot_be_is_named(arguments: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(said)):
        settings_from(arguments, {})


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_listening_beyond_loopback_needs_a_token(host: str, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="without a token"):
        create_app(Settings(host=host, home=tmp_path))
    plain = [f"--host={host}", f"--token-file={tmp_path}"]
    with pytest.raises(SettingsError, match="without TLS"):
        settings_from(plain, {})
    assert settings_from([*plain, "--allow-plain"], {}).host == host
    assert settings_from([*plain, f"--tls-cert={tmp_path}"], {}).host == host


@pytest.mark.parametrize("flag", ["--token-file", "--database-url-file", "--parameters-url-file"])
def test_a_pipe_that_nobody_writes_to_ends_the_start(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(setting_files.read_setting, "__defaults__", (0.05,))
    assert main([f"{flag}={tmp_path / 'pipe'}"]) == 2
    assert "it is a pipe that nobody writes to" in capsys.readouterr().err


def test_a_pipe_of_prices_that_nobody_writes_to_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "prices.toml")
    monkeypatch.setattr(setting_files.read_setting, "__defaults__", (0.05,))
    with pytest.raises(StartError, match=r"--prices: .* cannot be read: .* a pipe that nobody writes to"):
        create_app(Settings(home=tmp_path / "home", device="cpu", prices=tmp_path / "prices.toml"))


@pytest.mark.parametrize("flag", ["--port-file", "--answer-cache-file"])
def test_what_the_server_writes_is_no_pipe_and_no_folder(flag: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(SettingsError, match=f"{flag} {path} is not a regular file"):
            settings_from([f"{flag}={path}"], {})


@pytest.mark.parametrize("flag", ["--tls-cert", "--tls-key", "--tls-client-ca"])
def test_what_is_read_again_at_each_renewal_is_no_pipe(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cert, key = Certificates(tmp_path).issue("server")
    os.mkfifo(tmp_path / "pipe")
    flags = {"--tls-cert": cert, "--tls-key": key, flag: tmp_path / "pipe"}
    assert main([f"{name}={path}" for name, path in flags.items()]) == 2
    assert f"{flag} {tmp_path / 'pipe'} is not a regular file" in capsys.readouterr().err


@pytest.mark.security
@pytest.mark.parametrize(
    "name", ["127.evil.example", "127.0.0.1.nip.io", "localhost.evil.example", "0.0.0.0", "127.1", "[::1]"]
)
def test_a_name_that_looks_like_loopback_is_not(name: str) -> None:
    assert not is_loopback(name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ask-token-file=x"], "give the first too"),
        (["--ask-class=best"], "--ask-class must be"),
        (["--tls-key=x"], "need the certificate"),
        (["--tls-client-ca=x"], "need the certificate"),
    ],
)
def test_half_of_what_guards_the_door_is_not_enough(arguments: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        settings_from(arguments, {})


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_certificate_that_is_none_ends_the_start(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "cert.pem").write_text(content)
    assert main([f"--tls-cert={tmp_path / 'cert.pem'}"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"ml_udf server: --tls-cert {tmp_path / 'cert.pem'} ")
    assert "Traceback" not in said


def test_two_tokens_must_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    path = tmp_path / "token"
    assert main([f"--token-file={path}", f"--ask-token-file={path}"]) == 2
    assert "must be another one" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_loopback_needs_none(host: str) -> None:
    assert settings_from([f"--host={host}"], {}).token_file is None


@pytest.mark.parametrize("token", ["", "short", "two words of sixteen", "umlaut-äöü-1234567890"])
def test_a_token_that_is_none_ends_the_start(
    token: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text(token)
    assert main([f"--token-file={tmp_path / 'token'}"]) == 2
    said = capsys.readouterr().err
    assert "16 or more printable" in said
    assert not token or token not in said


def test_a_missing_token_file_ends_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--token-file={tmp_path / 'none'}"]) == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.security
@pytest.mark.parametrize(
    "flag",
    [
        "--database-url=postgresql://me:s3cret@db/x",
        "--database-url=postgresql://db/x?user=me&password=s3cret",
        "--parameters-url=s3://id:s3cret@bucket/x",
        "--parameters-url=s3://bucket/x?secret_key=s3cret",
    ],
)
def test_a_secret_on_the_command_line_is_refused_and_not_shown(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([flag]) == 2
    said = capsys.readouterr().err
    assert f"{flag.partition('=')[0]}-file FILE" in said
    assert "s3cret" not in said


@pytest.mark.security
@pytest.mark.parametrize("name", ["database", "parameters"])
def test_a_url_with_a_secret_comes_from_a_file_or_the_environment(tmp_path: Path, name: str) -> None:
    url = f"{name}://me:s3cret@host/x"
    (tmp_path / "url").write_text(url + "\n")
    for arguments, environment in (
        ([f"--{name}-url-file={tmp_path / 'url'}"], {}),
        ([], {f"ML_UDF_{name.upper()}_URL_FILE": str(tmp_path / "url")}),
        ([], {f"ML_UDF_{name.upper()}_URL": url}),
    ):
        assert getattr(settings_from(arguments, environment), f"{name}_url") == url


@pytest.mark.parametrize("text", ["", "two words", "\n"])
def test_a_file_that_holds_no_url_is_named_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "url").write_text(text)
    with pytest.raises(SettingsError, match="must hold one URL") as caught:
        settings_from([f"--database-url-file={tmp_path / 'url'}"], {})
    assert "two" not in str(caught.value)
    with pytest.raises(SettingsError, match="cannot be read"):
        settings_from([f"--database-url-file={tmp_path / 'none'}"], {})
    with pytest.raises(SettingsError, match="give one of them"):
        settings_from([f"--database-url-file={tmp_path / 'url'}", "--database-url=sqlite:///x"], {})


@pytest.mark.security
def test_a_cluster_that_asks_for_no_token_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for mode in (None, "disabled"):
        if mode is None:
            monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
        else:
            monkeypatch.setenv("RAY_AUTH_MODE", mode)
        assert main(["--pool=ray", f"--home={tmp_path}"]) == 2
        assert "set RAY_AUTH_MODE=token" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--pool=k8s"], "--pool must be local or ray, not 'k8s'"),
        (["--ray-address=10.0.0.1:6379"], "--ray-address is of --pool ray"),
        (["--shared-folder=/srv"], "--shared-folder is of --pool ray"),
        (["--node-ports=20100-20000"], "--node-ports: '20100-20000' is no range of ports"),
        (["--node-ports=80"], "--node-ports: '80' is no range of ports"),
        (["--node-folder=models"], "--node-folder must begin with / or ~/"),
    ],
)
def test_a_pool_that_is_not_known_is_refused(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags) == 2
    assert said in capsys.readouterr().err
