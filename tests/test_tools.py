"""Runs the examples of docs/with.md with the programs that they name (make test-tools), on MiniLM exported to ONNX."""

import re
import shutil

import numpy as np
import pytest

from test_docs import ROOT

pytestmark = pytest.mark.tools

PARTS = re.split(r"^## (.+)$", (ROOT / "docs" / "with.md").read_text(encoding="utf8"), flags=re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PREPARED = BLOCK.findall(PARTS[0])[0]
EXAMPLES = {head: BLOCK.findall(text) for head, text in zip(PARTS[1::2], PARTS[2::2], strict=True)}
# The modules that an example imports, besides those of cse.
NEEDED = {
    "FAISS": "faiss",
    "Qdrant": "qdrant_client",
    "LanceDB": "lancedb",
    "BERTopic": "bertopic",
    "scikit-learn": "sklearn",
    "sentence-transformers": "sentence_transformers",
    "Near-duplicates": "sentence_transformers",
    "Clustering": "sklearn",
    "Hard negatives of labelled pairs": "datasets",
    "LangChain": "langchain_core",
    "ONNX with 8-bit weights": "onnxruntime",
    "LlamaIndex": "llama_index.core",
    "fastembed": "fastembed",
}
NEAREST = "The court dismissed the appeal."


@pytest.fixture(scope="module")
def folder(tmp_path_factory, minilm, sample_rows):
    """A folder with the exported model ``out`` and the file corpus.txt."""
    pytest.importorskip("onnxscript", reason="not installed: pip install 'cse[onnx]'")
    from cse.encoder.onnx_export import export_onnx

    folder = tmp_path_factory.mktemp("tools")
    export_onnx(minilm, str(folder / "out"))
    (folder / "corpus.txt").write_text("".join(f"{row}\n" for row in sample_rows[:300]), encoding="utf8")
    return folder


@pytest.fixture
def run(folder, tmp_path, monkeypatch, capsys):
    """A function that runs the example under a heading; returns its variables and the lines that it prints."""

    def run(head):
        pytest.importorskip(NEEDED[head], reason=f"{head} is not installed: run make test-tools")
        for path in folder.iterdir():
            (tmp_path / path.name).symlink_to(path)
        monkeypatch.chdir(tmp_path)
        names = {}
        (example,) = EXAMPLES[head]
        capsys.readouterr()
        exec(compile(PREPARED + example, f"the example {head} in docs/with.md", "exec"), names)
        return names, capsys.readouterr().out.splitlines()

    return run


def test_every_example_has_a_test():
    assert {head for head, examples in EXAMPLES.items() if examples} == NEEDED.keys()


@pytest.mark.parametrize("head", ["FAISS", "Qdrant", "LanceDB", "sentence-transformers", "LangChain", "LlamaIndex"])
def test_a_search_finds_the_nearest_texts_with_the_cosines_of_the_encoder(run, head):
    names, lines = run(head)
    cosines = dict(zip(names["texts"], names["encoder"].similarity([names["query"]], names["texts"])[0], strict=True))
    best = sorted(cosines, key=cosines.get, reverse=True)[:2]
    assert best[0] == NEAREST
    found = [line.split("  ", 1) for line in lines]
    assert [text for _, text in found] == best
    assert [float(score) for score, _ in found] == pytest.approx([cosines[text] for text in best], abs=2e-3)


@pytest.mark.parametrize(
    ("head", "right"),
    [
        ("Near-duplicates", lambda names, lines: {0, 300} in map(set, names["groups"])),
        ("ONNX with 8-bit weights", lambda names, lines: 0.9 < min(names["cosines"]) < 1),
        ("Clustering", lambda names, lines: sum(int(line.split()[0]) for line in lines) == 300),
        ("Hard negatives of labelled pairs", lambda names, lines: len(names["triples"]) > 10),
        ("BERTopic", lambda names, lines: len(names["numbers"]) == 300 and max(names["numbers"]) > 0),
        ("scikit-learn", lambda names, lines: lines == ["['law' 'weather']"]),
    ],
)
def test_other_examples_have_sensible_results(run, head, right):
    assert right(*run(head))


def test_fastembed_computes_the_embeddings_of_the_encoder(run, monkeypatch):
    pytest.importorskip("fastembed", reason="fastembed is not installed: run make test-tools")
    from fastembed.text.custom_text_embedding import CustomTextEmbedding

    monkeypatch.setattr(CustomTextEmbedding, "SUPPORTED_MODELS", [])
    names, _ = run("fastembed")
    encoder, texts = names["encoder"], names["texts"]
    np.testing.assert_allclose(np.array(names["vectors"]), encoder.encode(texts), atol=1e-4)
    assert texts[int(np.argmax(names["scores"]))] == NEAREST
    # Between 128 and 256 tokens, and above 256, the maximum length of MiniLM.
    long = ["two words here " * 60, "one word after another " * 200]
    np.testing.assert_allclose(np.array(list(names["model"].embed(long))), encoder.encode(long), atol=1e-4)


def test_a_file_of_vectors_is_an_index_of_faiss(folder, cse, tmp_path):
    faiss = pytest.importorskip("faiss", reason="faiss is not installed: run make test-tools")
    shutil.copy(folder / "corpus.txt", tmp_path)
    done = cse("encode", folder / "out", "corpus.txt", "-o", "vectors.npy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    vectors = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    assert (index.search(vectors[:20], 1)[1][:, 0] == np.arange(20)).all()
