"""Tests of `cse encode --hybrid`: formulas against brute force, FAISS, files, and refused input."""

import json
import shutil
from collections import Counter

import numpy as np
import pytest

from cse import Encoder, InputError, SearchIndex
from cse.search import one_vector
from cse.search.fusion import Fusion
from cse.search.one_vector import encode_one_vector
from cse.search.terms import Terms
from random_texts import some_texts
from test_cli import refused

SUM = Fusion(feedback=0, kind="scores", language="none", stop_words="english")
QUERIES = ["word7 word8 the word9", "word4 word4 word5 word6", "word3", "unheard word1"]


@pytest.fixture(scope="module")
def texts():
    return [*some_texts(240), " ", "word4 word5", "word4 word5", "the the"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, glove, texts):
    """A folder in which no dimension of BM25 is left out."""
    path = tmp_path_factory.mktemp("hybrid") / "vectors"
    made = encode_one_vector(Encoder(glove), texts, path)
    assert (made.rows, made.blank, made.dense) == (244, 1, 16)
    return path


def ranked(folder, texts, queries):
    """Returns the documents' vectors and the products with queries of the rows that are not blank, in float64."""
    vectors = np.load(folder / "vectors.npy").astype(np.float64)
    asked = Encoder(folder).encode_query(queries).astype(np.float64)
    assert asked.shape[1] == vectors.shape[1] == Encoder(folder).embedding_dim
    return vectors, [row for row, text in enumerate(texts) if text.strip()], asked @ vectors.T


def bm25(texts):
    """Returns idf of each term, the matrix A of the module's docstring, and the terms."""
    lists = Terms(stop_words="english")(texts)
    vocabulary = sorted({term for each in lists for term in each})
    mean = np.mean([len(each) for each in lists])
    found = np.array([sum(term in each for each in lists) for term in vocabulary])
    idf = np.log(1 + (len(texts) - found + 0.5) / (found + 0.5))
    matrix = np.zeros((len(texts), len(vocabulary)))
    for row, each in enumerate(lists):
        for term, count in Counter(each).items():
            column = vocabulary.index(term)
            matrix[row, column] = np.sqrt(idf[column]) * count / (count + 1.5 * (0.25 + 0.75 * len(each) / mean))
    return idf, matrix, vocabulary


def test_products_are_the_scores_of_hybrid_search_with_smoothed_vectors(folder, glove, texts):
    vectors, kept, products = ranked(folder, texts, QUERIES)
    assert (vectors[240] == 0).all()  # a blank row
    index = SearchIndex.build(Encoder(glove), [texts[row] for row in kept], smooth=True)
    for query, scores in zip(QUERIES, products, strict=True):
        hits = index.search([query], 50, hybrid=SUM)[0]
        found = [scores[kept[hit.row]] for hit in hits]
        assert [hit.score - hits[0].score + found[0] for hit in hits] == pytest.approx(found, abs=2e-3)
        assert np.std([hit.score for hit in hits]) > 0.1
    assert (ranked(folder, texts, [""])[2] == 0).all()


@pytest.mark.parametrize(("dims", "exact", "rows"), [(1, 0, 244), (24, 0, 244), (150, 4096, 244), (24, 4096, 60)])
def test_the_lexical_part_approximates_bm25_as_well_as_is_possible_with_its_dimensions(
    tmp_path, glove, texts, dims, exact, rows, monkeypatch
):
    """The decomposition is exact by default; with 60 rows, there are more terms than documents."""
    monkeypatch.setattr(one_vector, "EXACT", exact)
    texts = texts[:rows]
    made = encode_one_vector(Encoder(glove), texts, tmp_path / "out", lexical_dims=dims, bm25_weight=1)
    assert made.lexical == dims
    vectors, filled, products = ranked(tmp_path / "out", texts, QUERIES)
    idf, matrix, vocabulary = bm25([texts[row] for row in filled])
    lexical = vectors[filled, 16:]
    assert np.mean(np.square(lexical).sum(1)) == pytest.approx(1, rel=1e-4)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    best = np.square(values[dims:]).sum()
    places = np.linalg.lstsq(lexical, matrix, rcond=None)[0]
    assert np.square(lexical @ places - matrix).sum() <= best * (1 + (1e-6 if exact else 0.03))
    expected = np.zeros((len(QUERIES), len(filled)))
    for row, query in enumerate(QUERIES):
        for term in Terms()([query])[0]:
            if term in vocabulary:
                at = vocabulary.index(term)
                expected[row] += np.sqrt(idf[at]) * (left[:, :dims] * values[:dims]) @ right[:dims, at]
    assert np.allclose(products[:, filled].std(1), 1, atol=1e-3)
    correlation = [np.corrcoef(*pair)[0, 1] for pair in zip(products[:, filled], expected, strict=True)]
    assert np.mean(correlation) > (1 - 1e-6 if exact else 0.9)
    cut = Encoder(tmp_path / "out").encode_query(QUERIES)[:, :16]
    assert (cut == 0).all()  # the weight of BM25 is 1


class Stored:
    """The encoder of a folder; its documents have the vectors of the folder."""

    def __init__(self, folder, texts):
        self._encoder = Encoder(folder)
        self._vectors = dict(zip(texts, np.load(folder / "vectors.npy"), strict=True))

    def __getattr__(self, name):
        return getattr(self._encoder, name)

    def encode_document(self, texts, **settings):
        return np.array([self._vectors[text] for text in texts])


def test_faiss_and_the_search_index_rank_as_brute_force_in_float64(folder, texts):
    faiss = pytest.importorskip("faiss", reason="needs faiss-cpu")
    kept = [row for row, text in enumerate(texts) if text.strip()]
    vectors, _, products = ranked(folder, texts, QUERIES)
    order = [sorted(kept, key=lambda row: -scores[row])[:20] for scores in products]
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(np.load(folder / "vectors.npy")[kept])
    scores, found = index.search(Encoder(folder).encode(QUERIES), 20)
    hits = SearchIndex.build(Stored(folder, texts), texts).search(QUERIES, 20)
    for row, expected in enumerate(order):
        assert np.allclose(scores[row], products[row, expected], atol=1e-4)
        assert [hit.score for hit in hits[row]] == pytest.approx(products[row, expected], abs=1e-4)
        for ranking in ([kept[place] for place in found[row]], [hit.row for hit in hits[row]]):
            same = [a for a, b in zip(ranking, expected, strict=True) if a == b]
            assert len(same) > 15  # the others have equal scores up to rounding
            assert np.allclose(products[row, ranking], products[row, expected], atol=1e-5)


def test_the_command_writes_vectors_and_the_encoder_of_queries(cse, tmp_path, glove, texts, folder):
    (tmp_path / "docs.txt").write_text("\n".join(texts), encoding="utf8")
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES), encoding="utf8")
    given = ["encode", glove, "docs.txt", "--hybrid", "-o", "out", "--json"]
    for options in ([], ["--lexical-dims", "5", "--bm25-weight", "0.4"], []):  # a folder is replaced
        done = cse(*given, *options, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["rows"], made["blank"], made["dense"]) == (244, 1, 16)
    for path in folder.iterdir():  # two runs write the same bytes
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes(), path.name
    done = cse("encode", "out", "queries.txt", "-o", "q.npy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert np.allclose(np.load(tmp_path / "q.npy"), Encoder(folder).encode_query(QUERIES), atol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["docs.txt", "out", "q.npy", "queries.txt"]


def test_a_failed_call_leaves_the_earlier_folder(tmp_path, glove, texts, monkeypatch):
    encode_one_vector(Encoder(glove), texts, tmp_path / "out", lexical_dims=4)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(one_vector.np, "save", fail)
    with pytest.raises(OSError, match="No space left"):
        encode_one_vector(Encoder(glove), texts, tmp_path / "out", lexical_dims=9)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_options_of_hybrid_vectors_are_checked(cse, tmp_path, glove, texts):
    (tmp_path / "docs.txt").write_text("\n".join(texts[:30]), encoding="utf8")
    (tmp_path / "blank.txt").write_text(" \n\n", encoding="utf8")
    (tmp_path / "words.txt").write_text("the\nand\n", encoding="utf8")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    given = ["encode", glove, "docs.txt", "--hybrid"]
    for options, message in (
        ([], "--hybrid needs -o, which names the folder"),
        (["-o", "out", "--parts"], "--hybrid cannot be combined with --parts"),
        (["-o", "out", "--format", "npy"], "--format applies only to --parts"),
        (["-o", "out", "--lexical-dims", "999"], "--lexical-dims 999: the matrix of BM25's weights has rank 30"),
        (["-o", "out", "--lexical-dims", "0"], "--lexical-dims must be >= 1, got 0"),
        (["-o", "out", "--bm25-weight", "2"], "--bm25-weight must be "),
        (["-o", "other"], "-o other: exists and was not written by cse encode --hybrid"),
    ):
        refused(cse(*given, *options, cwd=tmp_path), message)
    refused(
        cse(*given[:-1], "-o", "x.npy", "--bm25-weight", "0.5", cwd=tmp_path),
        "--bm25-weight has no effect without --hybrid",
    )
    for file, message in (("blank", "all 2 lines are blank"), ("words", "contains a word")):
        refused(cse("encode", glove, f"{file}.txt", "--hybrid", "-o", "out", cwd=tmp_path), message)
    encoder = Encoder(glove)
    encoder.similarity_fn_name = "dot"
    with pytest.raises(InputError, match="compares vectors by dot product"):
        encode_one_vector(encoder, texts, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_does_not_fit_is_refused(tmp_path, glove, texts):
    file = tmp_path / "v.txt"
    shutil.copy(glove.removeprefix("glove:"), file)
    path = tmp_path / "out"
    encode_one_vector(Encoder(f"glove:{file}"), texts, path)
    encoder = Encoder(path)
    with pytest.raises(InputError, match="encodes only queries"):
        SearchIndex.build(encoder, texts)
    with pytest.raises(InputError, match=r"--prompt, --dims: .* leave them out"):
        Encoder(path, dims=4)
    file.write_text(file.read_text(encoding="utf8").replace("word1 ", "word999 "), encoding="utf8")
    with pytest.raises(InputError, match="another state of the model"):
        Encoder(path)
    damaged = (path / "projection.npy").read_bytes()
    (path / "projection.npy").write_bytes(damaged[:-4] + b"aaaa")
    with pytest.raises(InputError, match=r"projection.npy is damaged"):
        Encoder(path)
