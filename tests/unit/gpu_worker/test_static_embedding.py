"""A text's embedding is the mean of its tokens' vectors, as the libraries that make such tables have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from gpu_worker.errors import ModelUnusable
from gpu_worker.model_files.manifest import read_manifest
from gpu_worker.networks.loader import load_network, warm_up
from gpu_worker.networks.network import Floats, Network, reading
from gpu_worker.networks.recognised import Recognised
from gpu_worker.networks.runtimes import RUNTIMES
from gpu_worker.networks.static_embedding import StaticEmbedding, TokenTable
from gpu_worker.networks.text_tokenizer import TextRules, TextTokenizer
from tests.unit.gpu_worker.recognising import CPU, stored

tokenizers = pytest.importorskip("tokenizers", reason="pip install 'ml_udf[embeddings]'")

WORDS = ["[UNK]", "a", "car", "runs", "fast"]
VECTORS = np.array([[9, 9, 9], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], np.float32)


def _tokenizer() -> Any:
    found = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    found.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return found


def _network(rules: TextRules | None = None, **options: Any) -> StaticEmbedding:
    return StaticEmbedding(TokenTable(VECTORS), TextTokenizer(_tokenizer(), rules or TextRules()), **options)


def _embedded(network: Network, *texts: str) -> Floats:
    found = reading(network, "features")([text.encode() for text in texts], lambda: False)
    return np.asarray(found, np.float32)


def test_a_text_is_the_mean_of_its_tokens_and_none_is_nothing() -> None:
    found = _embedded(_network(), "a car runs", "fast", "", "a unheard")
    assert found.tolist() == [
        pytest.approx([1 / 3, 1 / 3, 1 / 3]),
        [1, 1, 1],
        [0, 0, 0],
        [5, 4.5, 4.5],
    ]


def test_unknown_tokens_count_for_nothing_where_the_source_skips_them() -> None:
    assert _embedded(_network(skips=0), "a unheard", "unheard").tolist() == [[1, 0, 0], [0, 0, 0]]


def test_a_normalised_embedding_has_length_1() -> None:
    found = _embedded(_network(normalise=True), "a car", "")
    assert np.linalg.norm(found, axis=1) == pytest.approx([1, 0])


def test_texts_are_cut_prefixed_and_lowered_as_their_rules_say() -> None:
    assert _embedded(_network(TextRules(most_tokens=1)), "a car").tolist() == [[1, 0, 0]]
    assert _embedded(_network(TextRules(most_characters=1)), "a car").tolist() == [[1, 0, 0]]
    assert _embedded(_network(TextRules(prefix="car ")), "a").tolist() == [[0.5, 0.5, 0]]
    assert _embedded(_network(TextRules(lower_case=True)), "CAR").tolist() == [[0, 1, 0]]


def test_a_text_of_a_million_tokens_is_summed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_worker.networks.static_embedding._MOST_GATHERED", 7)
    assert _embedded(_network(), "a car " * 50)[0].tolist() == [0.5, 0.5, 0]


def test_texts_are_gathered_in_groups_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_worker.networks.static_embedding._GATHERED_TOGETHER", 4)
    texts = ["a", "a car", "", "car", "runs fast", "fast a", "a car runs fast fast"]
    found = _embedded(_network(), *texts)
    alone = [_embedded(_network(), text)[0].tolist() for text in texts]
    assert found.tolist() == alone
    assert found[-1].tolist() == pytest.approx([0.6, 0.6, 0.6])


def test_a_text_has_the_same_embedding_whatever_stands_beside_it() -> None:
    texts = ["a car runs fast", "fast", "a a a", "car"]
    together = _embedded(_network(), *texts)
    assert all(
        (line == _embedded(_network(), text)[0]).all() for text, line in zip(texts, together, strict=True)
    )


def test_weights_and_lines_of_tokens_are_followed() -> None:
    table = TokenTable(VECTORS[:2], lines=np.array([0, 1, 1, 1, 0]), weights=np.array([0, 1, 2, 3, 0]))
    network = StaticEmbedding(table, TextTokenizer(_tokenizer(), TextRules()))
    assert _embedded(network, "car runs").tolist() == [[2.5, 0, 0]]


def test_a_table_that_does_not_fit_is_refused() -> None:
    tokenizer = TextTokenizer(_tokenizer(), TextRules())
    with pytest.raises(ModelUnusable, match="5 tokens, and the table vectors for 4"):
        StaticEmbedding(TokenTable(VECTORS[:4]), tokenizer)
    with pytest.raises(ValueError, match="lines that the table of 2"):
        TokenTable(VECTORS[:2], lines=np.array([0, 2]))
    with pytest.raises(ValueError, match="2 tokens"):
        TokenTable(VECTORS[:2], weights=np.ones(3))


def _model2vec(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    save_file({"embeddings": VECTORS}, folder / "model.safetensors")
    _tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"normalize": True, **config}))
    return folder


def _recognised(path: Path, **wishes: Any) -> Recognised:
    recognise = RUNTIMES["static"].recognise
    assert recognise is not None
    found = recognise(path, wishes)
    assert found is not None
    return found


def _served(found: Recognised, directory: Path) -> Network:
    manifest = read_manifest(str(stored(found, directory, "words")))
    network = load_network(manifest, CPU)
    warm_up(network, manifest)
    return network


def test_a_folder_of_model2vec_is_served_as_it_answers_itself(tmp_path: Path) -> None:
    found = _recognised(_model2vec(tmp_path / "source", max_length=3))
    assert found.manifest["features"] == {"width": 3}
    network = _served(found, tmp_path)
    assert _embedded(network, "a car runs fast").tolist() == [pytest.approx([3**-0.5] * 3)]
    assert _embedded(network, "a unheard").tolist() == [[1, 0, 0]]
    assert network.resident_bytes > VECTORS.nbytes
    if found.reference is not None:  # model2vec is here
        assert _embedded(network, *(row.decode() for row in found.samples)) == pytest.approx(
            found.reference(found.samples), abs=found.bound
        )


def test_a_folder_of_sentence_transformers_static_embedding_is_served(tmp_path: Path) -> None:
    folder = tmp_path / "source" / "0_StaticEmbedding"
    folder.mkdir(parents=True)
    save_file({"embedding.weight": VECTORS}, folder / "model.safetensors")
    _tokenizer().save(str(folder / "tokenizer.json"))
    modules = [{"type": "sentence_transformers.models.StaticEmbedding", "path": "0_StaticEmbedding"}]
    (folder.parent / "modules.json").write_text(json.dumps(modules))
    network = _served(_recognised(folder.parent), tmp_path)
    assert _embedded(network, "a car").tolist() == [[0.5, 0.5, 0]]


@pytest.mark.security
def test_a_module_that_is_code_of_the_folder_is_refused(tmp_path: Path) -> None:
    save_file({"embedding.weight": VECTORS}, tmp_path / "model.safetensors")
    _tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "evil.StaticEmbedding", "path": ""}]))
    with pytest.raises(ModelUnusable, match=r"names 'evil\.StaticEmbedding': code that comes with a model"):
        _recognised(tmp_path)


def test_a_table_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = _model2vec(tmp_path / "source")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelUnusable, match=r"no tokenizer: .*tokenizer\.json is missing"):
        _recognised(folder)


@pytest.mark.security
@pytest.mark.parametrize("content", [b"", b"{}", b"\x80\x04pickle", b'{"version": "1.0", "model": 3}'])
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, content: bytes) -> None:
    found = _recognised(_model2vec(tmp_path / "source"))
    folder = stored(found, tmp_path, "words")
    manifest = json.loads((folder / "model.json").read_text())
    (folder / "tokenizer.json").write_bytes(content)
    manifest["files"][1]["sha256"] = ""
    (folder / "model.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelUnusable, match="is no tokenizer"):
        load_network(read_manifest(str(folder)), CPU)


def test_other_folders_are_not_taken_for_static_embeddings(tmp_path: Path) -> None:
    recognise = RUNTIMES["static"].recognise
    assert recognise is not None
    save_file({"classifier.weight": VECTORS}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert recognise(tmp_path, {}) is None
    assert recognise(tmp_path / "model.safetensors", {}) is None
    assert recognise(tmp_path / "none", {}) is None
