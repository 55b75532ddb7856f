"""The home folder: everything appears whole or not at all, and nothing leaves it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from server.errors import BadOption, BodyTooLarge
from server.store.artifacts import Artifacts
from tests.unit.server.manifests import manifest

WEIGHTS = b"the weights" * 100
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def artifacts(home: Path) -> Artifacts:
    return Artifacts(home, max_model_bytes=1 << 20)


def with_weights(**fields: Any) -> dict[str, Any]:
    return manifest(weights="model.safetensors", **fields)


def leftovers(home: Path) -> list[str]:
    return [path.name for path in (home / "models").iterdir() if path.name.startswith(".")]


def test_an_installed_model_lies_whole_in_its_place_with_its_checksum(
    artifacts: Artifacts, home: Path
) -> None:
    installed, place = artifacts.install(with_weights(), io.BytesIO(WEIGHTS))
    assert place == home / "models/net/1"
    assert (place / "model.safetensors").read_bytes() == WEIGHTS
    assert json.loads((place / "model.json").read_text()) == installed
    assert installed["sha256"] == SHA256
    assert leftovers(home) == []
    assert list(artifacts.found()) == [place]


def test_a_copy_that_somebody_made_beside_a_version_is_none(artifacts: Artifacts, home: Path) -> None:
    _, place = artifacts.install(with_weights(), io.BytesIO(WEIGHTS))
    for copy in ("1.bak", "of mine", ".2"):
        shutil.copytree(place, place.with_name(copy))
    assert list(artifacts.found()) == [place]


def test_installing_the_same_again_is_fine_and_other_weights_are_refused(artifacts: Artifacts) -> None:
    _, place = artifacts.install(with_weights(), io.BytesIO(WEIGHTS))
    artifacts.install(with_weights(), io.BytesIO(WEIGHTS))
    with pytest.raises(BadOption, match="other weights"):
        artifacts.install(with_weights(), io.BytesIO(b"other"))
    assert (place / "model.safetensors").read_bytes() == WEIGHTS


def test_damaged_weights_are_refused_and_leave_nothing(artifacts: Artifacts, home: Path) -> None:
    with pytest.raises(BadOption, match="SHA-256"):
        artifacts.install(with_weights(sha256="0" * 64), io.BytesIO(WEIGHTS))
    assert leftovers(home) == []
    assert list(artifacts.found()) == []


def test_weights_over_the_limit_are_refused_while_they_are_read(home: Path) -> None:
    small = Artifacts(home, max_model_bytes=1000)
    with pytest.raises(BodyTooLarge, match="1000 bytes"):
        small.install(with_weights(), io.BytesIO(WEIGHTS))
    assert leftovers(home) == []


def test_a_manifest_and_its_weights_come_together(artifacts: Artifacts) -> None:
    with pytest.raises(BadOption, match="names weights and none came"):
        artifacts.install(with_weights(), None)
    with pytest.raises(BadOption, match="names no weights"):
        artifacts.install(manifest(), io.BytesIO(WEIGHTS))


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", "", "..", "a\0b", "-flag", "x" * 101])
def test_a_name_that_could_leave_the_folder_is_refused(artifacts: Artifacts, home: Path, name: str) -> None:
    with pytest.raises(BadOption, match="not a name"):
        artifacts.install(manifest(name), None)
    with pytest.raises(BadOption, match="not a name"):
        artifacts.write_function(name, {})
    assert sorted(path.name for path in home.iterdir()) == ["functions", "models"]


@pytest.mark.parametrize("weights", ["../../secret", "/etc/passwd", "model.json", "a/b", ["x"]])
def test_weights_outside_their_own_folder_are_refused(artifacts: Artifacts, weights: object) -> None:
    with pytest.raises(BadOption, match="weights"):
        artifacts.install(manifest(weights=weights), io.BytesIO(WEIGHTS))


def write_model(folder: Path, **fields: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.json").write_text(json.dumps(with_weights(**fields)))
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    return folder


def test_a_directory_of_the_host_is_copied_into_the_home(
    artifacts: Artifacts, home: Path, tmp_path: Path
) -> None:
    adopted, place = artifacts.adopt(write_model(tmp_path / "made"))
    assert place == home / "models/net/1"
    assert adopted["sha256"] == SHA256
    assert (tmp_path / "made/model.safetensors").exists()


def test_a_directory_that_is_already_in_its_place_is_used_as_it_is(artifacts: Artifacts, home: Path) -> None:
    place = write_model(home / "models/net/1", sha256=SHA256)
    before = os.stat(place / "model.safetensors")
    assert artifacts.adopt(place)[1] == place
    assert os.stat(place / "model.safetensors").st_ino == before.st_ino


def test_a_damaged_file_in_its_place_is_noticed(artifacts: Artifacts, home: Path) -> None:
    with pytest.raises(BadOption, match="damaged"):
        artifacts.adopt(write_model(home / "models/net/1", sha256="0" * 64))


def test_weights_that_are_a_link_or_no_file_are_not_followed(artifacts: Artifacts, tmp_path: Path) -> None:
    made = write_model(tmp_path / "made")
    (made / "model.safetensors").unlink()
    (made / "model.safetensors").symlink_to("/etc/passwd")
    with pytest.raises(BadOption, match="cannot be read"):
        artifacts.adopt(made)


@pytest.mark.security
@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "folder"])
def test_what_is_no_regular_file_is_refused_and_nobody_waits_for_it(
    artifacts: Artifacts, tmp_path: Path, name: str, kind: str
) -> None:
    made = write_model(tmp_path / "made")
    (made / name).unlink()
    if kind == "fifo":
        os.mkfifo(made / name)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(made):
            bound.bind(name)
    elif kind == "device":
        (made / name).symlink_to("/dev/zero")
    else:
        (made / name).mkdir()
    with pytest.raises(BadOption, match="not a regular file"):
        artifacts.adopt(made)


@pytest.mark.parametrize("content", ["", "[]", "{", '"text"', "[" * 100_000])
def test_a_folder_without_a_readable_manifest_is_refused(
    artifacts: Artifacts, tmp_path: Path, content: str
) -> None:
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(BadOption, match="JSON"):
        artifacts.adopt(tmp_path)


@pytest.mark.parametrize("value", ["1e400", '"\\ud800"', '"\\u0000"'])
def test_a_manifest_that_others_could_not_read_again_is_refused(
    artifacts: Artifacts, tmp_path: Path, value: str
) -> None:
    (tmp_path / "model.json").write_text(f'{{"format": 1, "name": "net", "note": {value}}}')
    with pytest.raises(BadOption, match=r"model.json cannot be kept: it holds"):
        artifacts.adopt(tmp_path)


def test_a_functions_form_is_replaced_whole_and_removed(artifacts: Artifacts, home: Path) -> None:
    artifacts.write_function("f", {"version": 1})
    artifacts.write_function("f", {"version": 2})
    assert json.loads((home / "functions/f.json").read_text()) == {"version": 2}
    assert artifacts.functions() == {"f"}
    artifacts.remove_function("f")
    artifacts.remove_function("f")
    assert artifacts.functions() == set()


def test_two_servers_of_a_home_publish_the_later_deployment_whoever_is_first(
    artifacts: Artifacts, home: Path
) -> None:
    other = Artifacts(home, max_model_bytes=1 << 20)
    artifacts.stage_function("f", {"version": 1})
    other.stage_function("f", {"version": 2})
    artifacts.publish_function("f", {"version": 1})
    other.publish_function("f", {"version": 2})
    assert json.loads((home / "functions/f.json").read_text()) == {"version": 2}
    artifacts.stage_function("f", {"version": 3})
    other.unstage_function("f")  # what it was about to deploy came to nothing
    artifacts.publish_function("f", {"version": 3})
    assert json.loads((home / "functions/f.json").read_text()) == {"version": 3}


def test_the_next_version_is_none_that_another_server_is_storing(artifacts: Artifacts, home: Path) -> None:
    assert artifacts.next_version("net", 2) == 2
    artifacts.install(with_weights(version=2), io.BytesIO(WEIGHTS))
    assert (artifacts.next_version("net", 1), artifacts.next_version("net", 2)) == (1, 3)


LISTED = [{"name": "model.safetensors"}, {"name": "tokenizer.json", "role": "tokenizer"}]


def test_every_file_of_a_model_is_stored_with_its_checksum(artifacts: Artifacts) -> None:
    others = {"tokenizer.json": io.BytesIO(b"{}")}
    installed, place = artifacts.install(manifest(files=LISTED), io.BytesIO(WEIGHTS), others)
    assert (place / "tokenizer.json").read_bytes() == b"{}"
    assert (installed["weights"], installed["sha256"]) == ("model.safetensors", SHA256)
    assert [file["sha256"] for file in installed["files"]] == [SHA256, hashlib.sha256(b"{}").hexdigest()]
    assert artifacts.adopt(place)[0] == installed
    (place / "tokenizer.json").write_bytes(b"other")
    with pytest.raises(BadOption, match=r"tokenizer\.json.*damaged"):
        artifacts.adopt(place)


def test_a_version_with_another_tokenizer_is_another_version(artifacts: Artifacts) -> None:
    for tokenizer in (b"{}", b"{}"):
        artifacts.install(
            manifest(files=LISTED), io.BytesIO(WEIGHTS), {"tokenizer.json": io.BytesIO(tokenizer)}
        )
    with pytest.raises(BadOption, match="use another version"):
        artifacts.install(manifest(files=LISTED), io.BytesIO(WEIGHTS), {"tokenizer.json": io.BytesIO(b"[]")})


@pytest.mark.parametrize("gone", ["model.safetensors", "tokenizer.json"])
def test_installing_the_same_again_puts_back_a_file_that_is_gone_and_changes_no_other(
    gone: str, artifacts: Artifacts, home: Path
) -> None:
    def install() -> Path:
        others = {"tokenizer.json": io.BytesIO(b"{}")}
        return artifacts.install(manifest(files=LISTED), io.BytesIO(WEIGHTS), others)[1]

    place = install()
    others = {path: path.stat().st_ino for path in place.iterdir() if path.name != gone}
    (place / gone).unlink()
    assert install() == place
    assert (place / gone).read_bytes() in (WEIGHTS, b"{}")
    assert {path: path.stat().st_ino for path in others} == others
    assert artifacts.adopt(place)[1] == place
    assert leftovers(home) == []


def test_files_that_are_missing_or_not_listed_are_named(artifacts: Artifacts, home: Path) -> None:
    with pytest.raises(BadOption, match=r"lists the file 'tokenizer\.json' and none came"):
        artifacts.install(manifest(files=LISTED), io.BytesIO(WEIGHTS))
    with pytest.raises(BadOption, match="does not list it"):
        artifacts.install(with_weights(), io.BytesIO(WEIGHTS), {"evil.json": io.BytesIO(b"{}")})
    assert leftovers(home) == []


def test_the_limit_is_for_all_files_of_a_model(home: Path) -> None:
    small = Artifacts(home, max_model_bytes=len(WEIGHTS) + 10)
    with pytest.raises(BodyTooLarge, match="over the limit"):
        small.install(manifest(files=LISTED), io.BytesIO(WEIGHTS), {"tokenizer.json": io.BytesIO(b"x" * 11)})
