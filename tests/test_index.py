"""The TF-IDF index: comparison with the reference implementation and scikit-learn; saving, opening and merging."""

import gzip
import json
import math
import pickle

import numpy as np
import pytest
import scipy.sparse
from sklearn.feature_extraction.text import CountVectorizer

from cse import InputError, TfidfIndex
from cse.tfidf.build import build_index
from una_reference import ReferenceIndex


def write(path, text):
    path.write_bytes(text.encode("utf8", "surrogatepass") if isinstance(text, str) else text)
    return path


@pytest.fixture(scope="module")
def twenty_thousand(tmp_path_factory, shared):
    folder = tmp_path_factory.mktemp("rows")
    with gzip.open(shared("corpus/enwiki1m.txt.gz"), "rt", encoding="utf8", newline="\n") as file:
        rows = [next(file) for _ in range(20_000)]
    return write(folder / "first.txt", "".join(rows)), [row.rstrip("\n") for row in rows]


@pytest.fixture(params=["sample", pytest.param("twenty_thousand", marks=pytest.mark.slow)])
def corpus(request, sample, sample_rows):
    """The path and rows of a corpus: the sample that cse contains, and 20,000 sentences of the shared data."""
    return (sample, sample_rows) if request.param == "sample" else request.getfixturevalue("twenty_thousand")


def test_df_idf_and_max_score_equal_those_of_the_reference(corpus):
    path, rows = corpus
    twin = ReferenceIndex.build(rows)
    index = TfidfIndex.build(path, tokenizer="whitespace")
    assert index.info.documents == twin.documents == len(rows)
    assert index.terms == twin.terms
    assert index.df.tolist() == [twin.df[term] for term in twin.terms]
    np.testing.assert_allclose(index.idf, [twin.idf[term] for term in twin.terms], rtol=1e-12)
    np.testing.assert_allclose(index.max_score, [twin.max_score[term] for term in twin.terms], rtol=1e-12)
    assert [index.terms[t] for t in index.by_rank] == twin.by_rank


def test_matrix_equals_the_formula_applied_to_counts_of_scikit_learn(corpus, tmp_path):
    path, rows = corpus
    build_index([str(path)], tmp_path, words={"tokenizer": "whitespace"})
    matrix = scipy.sparse.load_npz(tmp_path / "matrix.npz")
    counter = CountVectorizer(tokenizer=str.split, token_pattern=None, lowercase=True)
    counts = counter.fit_transform(rows).tocoo()
    # The index sorts terms by UTF-8 bytes and scikit-learn sorts them by code points; both give the same order.
    assert counter.get_feature_names_out().tolist() == TfidfIndex.open(tmp_path).terms
    length = np.asarray(counts.sum(axis=1)).ravel()
    df = np.bincount(counts.col, minlength=counts.shape[1])
    values = np.log1p(counts.data / length[counts.row]) * np.log(len(rows) / df)[counts.col]
    expected = scipy.sparse.csr_matrix((values, (counts.row, counts.col)), shape=counts.shape)
    assert matrix.shape == expected.shape
    assert matrix.has_sorted_indices
    assert abs(matrix - expected).max() < 1e-12


@pytest.mark.slow
def test_the_index_of_a_million_sentences_counts_a_million_documents(shared, tmp_path):
    path = shared("corpus/enwiki1m.txt.gz")
    index = TfidfIndex.build(path)
    assert (index.info.documents, index.info.rows, index.info.blank) == (1_000_000, 1_000_000, 0)


def test_index_and_matrix_do_not_depend_on_the_number_of_threads(sample, tmp_path):
    # The corpus has more than one chunk per thread, so the order in which threads read rows varies.
    big = write(tmp_path / "big.txt", sample.read_bytes() * 3)
    for threads in (1, 2, 5):
        build_index([str(big)], tmp_path / str(threads), reading={"threads": threads})
    for name in ("index.safetensors", "matrix.npz"):
        first = (tmp_path / "1" / name).read_bytes()
        assert (tmp_path / "2" / name).read_bytes() == first
        assert (tmp_path / "5" / name).read_bytes() == first


def test_a_plain_and_a_compressed_file_give_the_same_index_as_one_joined_file(sample, tmp_path):
    rows = sample.read_bytes().splitlines(keepends=True)
    plain = write(tmp_path / "a.txt", b"".join(rows[:4000]).rstrip(b"\n"))  # no newline at the end of the last row
    packed = tmp_path / "b.txt.gz"
    packed.write_bytes(gzip.compress(b"".join(rows[4000:7000])) + gzip.compress(b"".join(rows[7000:])))
    joined, whole = TfidfIndex.build([plain, packed]), TfidfIndex.build(sample)
    assert joined.terms == whole.terms
    np.testing.assert_array_equal(joined.df, whole.df)
    np.testing.assert_array_equal(joined.max_score, whole.max_score)
    assert [file.rows for file in joined.files] == [4000, 6000]


def test_blank_rows_keep_their_row_number_but_are_not_documents_as_rows_without_words_are(tmp_path):
    path = write(tmp_path / "blank.txt", "one two\n\n \t\x1c\u2003\nthree\n")
    info, *_ = build_index([str(path)], tmp_path)
    assert (info.documents, info.rows, info.blank) == (2, 4, 2)
    matrix = scipy.sparse.load_npz(tmp_path / "matrix.npz")
    assert matrix.shape == (4, 3)
    assert np.diff(matrix.indptr).tolist() == [2, 0, 0, 1]
    assert matrix[0, 0] == pytest.approx(math.log(1 + 1 / 2) * math.log(2 / 1))
    info = TfidfIndex.build(write(tmp_path / "mute.txt", "...\none two\n")).info
    assert (info.documents, info.wordless, info.blank) == (2, 1, 0)


@pytest.mark.parametrize(
    "separator", ["\u2028", "\u2029", "\x85", "\x1c", "\x1d", "\x1e", "\x1f", "\r", "\x0b", "\x0c"]
)
def test_rows_are_split_at_newlines_only(tmp_path, separator):
    path = write(tmp_path / "odd.txt", f"one{separator}two\nthree\n")
    assert TfidfIndex.build(path).info.rows == 2
    assert TfidfIndex.build(path).terms == ["one", "three", "two"]


def test_a_byte_order_mark_and_carriage_returns_at_line_ends_are_ignored(tmp_path):
    plain = write(tmp_path / "plain.txt", "one two\nthree\n")
    windows = write(tmp_path / "windows.txt", b"\xef\xbb\xbfone two\r\nthree\r\n")
    assert TfidfIndex.build(windows, tokenizer="whitespace").terms == TfidfIndex.build(plain).terms


def test_an_opened_index_equals_the_saved_index(sample_index, tmp_path):
    sample_index.save(tmp_path)
    opened = TfidfIndex.open(tmp_path)
    for name in ("terms", "df", "idf", "max_score", "by_rank", "info", "files", "tokenizer"):
        assert np.array_equal(getattr(opened, name), getattr(sample_index, name)), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda whole: b"", "not a readable cse index"),
        (lambda whole: whole[:4], "not a readable cse index"),
        (lambda whole: whole[: len(whole) // 2], "not a readable cse index"),
        (lambda whole: whole[:-1], "not a readable cse index"),
        (lambda whole: whole.replace(b'\\"documents\\":10000', b'\\"documents\\":10001'), "truncated or edited"),
        (lambda whole: whole.replace(b'\\"format\\":1', b'\\"format\\":9'), "format version 9, but this cse reads"),
    ],
)
def test_a_truncated_or_edited_index_or_one_of_another_version_is_refused(sample_index, tmp_path, change, message):
    sample_index.save(tmp_path)
    file = tmp_path / "index.safetensors"
    whole = file.read_bytes()
    file.write_bytes(change(whole))
    assert file.read_bytes() != whole
    with pytest.raises(InputError, match=rf"index\.safetensors: .*{message}"):
        TfidfIndex.open(tmp_path)


def test_merged_shards_equal_one_build_byte_for_byte(sample, tmp_path, cse_here):
    rows = sample.read_bytes().splitlines(keepends=True)
    parts = [rows[:3000], [b"\n \n", rows[3000]], rows[3001:]]  # blank rows also have row numbers
    files = [write(tmp_path / f"{n}.txt", b"".join(part)) for n, part in enumerate(parts)]
    for n, file in enumerate(files):
        assert cse_here("build-tfidf", file, "-o", f"shard{n}", cwd=tmp_path).returncode == 0
    done = cse_here("merge-tfidf", "shard0", "shard1", "shard2", "-o", "all", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["documents"] == 10_000
    build_index(files, tmp_path / "once", matrix=False)
    one, other = ((tmp_path / folder / "index.safetensors").read_bytes() for folder in ("all", "once"))
    assert one == other
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["index.safetensors"]


def test_merge_refuses_shards_with_different_tokenizers_and_missing_shards(sample, tmp_path):
    for tokenizer in ("unicode", "whitespace"):
        build_index([str(sample)], tmp_path / tokenizer, words={"tokenizer": tokenizer}, matrix=False)
    with pytest.raises(InputError, match="whitespace: its tokenizer is whitespace, but the previous index has"):
        TfidfIndex.merge([tmp_path / "unicode", tmp_path / "whitespace"], tmp_path / "all")
    with pytest.raises(InputError, match="nowhere: no TF-IDF index there"):
        TfidfIndex.merge([tmp_path / "unicode", tmp_path / "nowhere"], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_transform_equals_the_matrix_and_ignores_unknown_terms(sample, sample_rows, tmp_path):
    build_index([str(sample)], tmp_path)
    matrix, index = scipy.sparse.load_npz(tmp_path / "matrix.npz"), TfidfIndex.open(tmp_path)
    assert abs(index.transform(sample_rows) - matrix).max() == 0
    known, with_unknown = index.transform(["the", "the zqxv", ""]).toarray()[:2]
    the = index.terms.index("the")
    assert known[the] == pytest.approx(math.log(2) * index.idf[the])
    assert with_unknown[the] == pytest.approx(math.log(1.5) * index.idf[the])
    assert np.count_nonzero(with_unknown) == 1


def test_an_index_can_be_pickled(sample_index, sample_rows):
    again = pickle.loads(pickle.dumps(sample_index))
    assert again.to_bytes() == sample_index.to_bytes()
    assert again.augment(sample_rows[:5]) == sample_index.augment(sample_rows[:5])


def test_a_new_index_without_a_matrix_removes_the_old_matrix(tmp_path):
    path = write(tmp_path / "a.txt", "one two\nthree\n")
    build_index([str(path)], tmp_path / "out")
    build_index([str(path)], tmp_path / "out", matrix=False)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["index.safetensors"]
