"""The TF-IDF index and its tokenizers, compared with the reference implementation, scikit-learn and NLTK."""

import gzip
import json
import math

import numpy as np
import pytest
import scipy.sparse
from sklearn.feature_extraction.text import CountVectorizer

from commands import refuses
from cse import TfidfIndex
from cse._core import tokenize
from cse.tfidf.build import build_index
from cse.tfidf.options import word_options
from test_cli import ran
from una_reference import ReferenceIndex


def write(path, text):
    path.write_bytes(text.encode("utf8", "surrogatepass") if isinstance(text, str) else text)
    return path


def test_df_idf_and_max_score_equal_those_of_the_reference(sample, sample_rows):
    twin = ReferenceIndex.build(sample_rows)
    index = TfidfIndex.build(sample, tokenizer="whitespace")
    assert index.info.documents == twin.documents == 10_000
    assert index.terms == twin.terms
    assert index.df.tolist() == [twin.df[term] for term in twin.terms]
    np.testing.assert_allclose(index.idf, [twin.idf[term] for term in twin.terms], rtol=1e-12)
    np.testing.assert_allclose(index.max_score, [twin.max_score[term] for term in twin.terms], rtol=1e-12)
    assert [index.terms[t] for t in index.by_rank] == twin.by_rank


def test_matrix_equals_the_formula_applied_to_counts_of_scikit_learn(sample, sample_rows, tmp_path):
    build_index([str(sample)], tmp_path, words={"tokenizer": "whitespace"})
    matrix = scipy.sparse.load_npz(tmp_path / "matrix.npz")
    counter = CountVectorizer(tokenizer=str.split, token_pattern=None, lowercase=True)
    counts = counter.fit_transform(sample_rows).tocoo()
    # The index sorts terms by UTF-8 bytes and scikit-learn sorts them by code points; both give the same order.
    assert counter.get_feature_names_out().tolist() == TfidfIndex.open(tmp_path).terms
    length = np.asarray(counts.sum(axis=1)).ravel()
    df = np.bincount(counts.col, minlength=counts.shape[1])
    values = np.log1p(counts.data / length[counts.row]) * np.log(10_000 / df)[counts.col]
    expected = scipy.sparse.csr_matrix((values, (counts.row, counts.col)), shape=counts.shape)
    assert matrix.shape == expected.shape
    assert matrix.has_sorted_indices
    assert abs(matrix - expected).max() < 1e-12


def test_index_and_matrix_do_not_depend_on_the_number_of_threads(sample, tmp_path):
    # The corpus has more than one chunk per thread, so the order in which threads read rows varies.
    big = write(tmp_path / "big.txt", sample.read_bytes() * 3)
    for threads in (1, 2, 5):
        build_index([str(big)], tmp_path / str(threads), reading={"threads": threads})
    for name in ("index.safetensors", "matrix.npz"):
        assert len({(tmp_path / threads / name).read_bytes() for threads in "125"}) == 1


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


def test_rows_are_split_at_newlines_only(tmp_path):
    for separator in "\u2028\u2029\x85\x1c\x1d\x1e\x1f\r\x0b\x0c":
        index = TfidfIndex.build(write(tmp_path / "odd.txt", f"one{separator}two\nthree\n"))
        assert (index.info.rows, index.terms) == (2, ["one", "three", "two"])


def test_a_truncated_or_edited_index_or_one_of_another_version_is_refused(sample_index, tmp_path):
    sample_index.save(tmp_path)
    file = tmp_path / "index.safetensors"
    whole = file.read_bytes()
    for content, message in (
        *((whole[:length], "not a readable cse index") for length in (0, 4, len(whole) // 2, -1)),
        (whole.replace(b'\\"documents\\":10000', b'\\"documents\\":10001'), "truncated or edited"),
        (whole.replace(b'\\"format\\":1', b'\\"format\\":9'), "format version 9, but this cse reads"),
    ):
        assert content != whole
        file.write_bytes(content)
        refuses(rf"index\.safetensors: .*{message}", TfidfIndex.open, tmp_path)


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


def test_transform_equals_the_matrix_and_ignores_unknown_terms(sample, sample_rows, tmp_path):
    build_index([str(sample)], tmp_path)
    matrix, index = scipy.sparse.load_npz(tmp_path / "matrix.npz"), TfidfIndex.open(tmp_path)
    assert abs(index.transform(sample_rows) - matrix).max() == 0
    known, with_unknown = index.transform(["the", "the zqxv", ""]).toarray()[:2]
    the = index.terms.index("the")
    assert known[the] == pytest.approx(math.log(2) * index.idf[the])
    assert with_unknown[the] == pytest.approx(math.log(1.5) * index.idf[the])
    assert np.count_nonzero(with_unknown) == 1


AWKWARD = [
    "",
    "\"Don't,\" she said, \"can't we? I'd've gone...\"",
    "they'll pay $1,234.50 (e.g. to foo@bar.com) - or 50%; won't they?!",
    "''quoted'' `ticks` ``more`` \u201ccurly\u201d \u00abguillemets\u00bb it's 'tis 'twas",
    "gimme cannot gonna wanna more'n d'ye lemme gotta whaddaya",
    "U.S.A. ends. here... (\u2026) a--b [c] {d} <e> *f* g,h:i 1:30 1,5 ,5 ;x",
    "\u0130stanbul STRASSE \u00df \u03a3\u0391\u03a3 na\u00efve \u5317\u4eac \u0663,\u0664 \u00b2 \u2167 \u1d2c",
    "tabs\there\x0bthere\x1cnbsp\xa0thin\u2009line\u2028end \u0085 \r",
    "'s 'll n't ' '' \" \"\" . .. ... , : ,, :: a' 'b c'd'e",
]


def tokens(text, **words):
    return [term for _, _, term in tokenize(text, word_options(**words))]


@pytest.fixture(scope="module")
def nltk_tokens():
    nltk = pytest.importorskip("nltk.tokenize", reason="nltk is not installed: pip install nltk")
    tokenizer = nltk.NLTKWordTokenizer()
    return lambda line: tokenizer.tokenize(line.lower())


def test_treebank_equals_nltk_on_difficult_lines_and_on_the_sample(nltk_tokens, sample_rows):
    for line in [*AWKWARD, *sample_rows[::4]]:
        assert tokens(line, tokenizer="treebank") == nltk_tokens(line)


@pytest.mark.slow
def test_treebank_equals_nltk_on_every_sts_file(nltk_tokens, shared):
    compared = set()
    for file in shared("sts_raw").rglob("*.*"):
        for number, line in enumerate(file.read_text(encoding="utf8", errors="replace").split("\n")):
            whole = {line} if number % 10 == 0 else set()  # a line with its tabs holds no other words than its fields
            for field in (whole | {*line.split("\t")}) - compared:
                compared.add(field)
                assert tokens(field, tokenizer="treebank") == nltk_tokens(field), (file, field)
    assert len(compared) > 5000


@pytest.mark.parametrize("tokenizer", ["unicode", "whitespace", "treebank"])
def test_spans_of_terms_are_character_positions(tokenizer, sample_rows):
    for text in [*AWKWARD, *sample_rows[:200]]:
        last = 0
        for start, end, term in tokenize(text, word_options(tokenizer=tokenizer)):
            assert last <= start < end <= len(text)
            assert text[start:end].lower() == term or text[start:end] in ('"', "''"), (text[start:end], term)
            last = end


def test_terms_have_the_case_and_unicode_normal_form_set_by_the_options():
    text = "The \ufb01ne \uff26ull \u212b K\u00c4SE"
    for tokenizer in ("unicode", "whitespace", "treebank"):
        options = {"tokenizer": tokenizer}
        assert tokens(text, **options) == text.lower().split()
        assert tokens(text, lowercase=False, **options) == text.split()
        assert tokens(text, nfkc=True, **options) == ["the", "fine", "full", "\u00e5", "k\u00e4se"]
        assert tokens(text, nfkc=True, lowercase=False, **options) == ["The", "fine", "Full", "\u00c5", "K\u00c4SE"]


def test_an_index_stores_its_word_options(tmp_path, cse_here):
    (tmp_path / "a.txt").write_text("The \uff26ox\nthe fox\n", encoding="utf8")
    ran(cse_here("build-tfidf", "a.txt", "--no-lowercase", "--nfkc", cwd=tmp_path))
    index = TfidfIndex.open(tmp_path / "tfidf")
    assert index.terms == ["Fox", "The", "fox", "the"]
    assert index.words == {"tokenizer": "unicode", "lowercase": False, "nfkc": True}
    assert index.transform(["the \uff26ox"]).indices.tolist() == [0, 3]
    TfidfIndex.build(tmp_path / "a.txt").save(tmp_path / "other")
    for name, message in (("tfidf", "unicode, case kept, NFKC"), ("nowhere", "nowhere: no TF-IDF index there")):
        refuses(message, TfidfIndex.merge, [tmp_path / "other", tmp_path / name], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_surface_plain_is_the_default_of_a_treebank_index(sample, sample_rows, nltk_tokens):
    index = TfidfIndex.build(sample, tokenizer="treebank")
    assert index.augment(sample_rows[:50]) == index.augment(sample_rows[:50], surface="plain")
    for row, text in enumerate(sample_rows[:50]):
        negative, replaced = index.replacements(text, row=row)
        words = nltk_tokens(text)
        assert len(negative.split(" ")) == len(words)
        for new in replaced:
            assert negative[slice(*new.new_span)] == new.new
            assert text[slice(*new.span)] == new.old
        kept = [word for word, other in zip(words, negative.split(" "), strict=True) if word == other]
        assert len(kept) == len(words) - len(replaced)
    refuses("treebank", index.augment, sample_rows[:1], surface="keep")


def test_a_filtered_index_has_only_some_terms_and_cannot_be_saved(sample, sample_rows, tmp_path, cse_here):
    whole = TfidfIndex.build(sample)
    whole.save(tmp_path / "tfidf")
    some = TfidfIndex.open(tmp_path / "tfidf", min_df=3, max_terms=1000)
    assert len(some) == 1000
    df = dict(zip(whole.terms, whole.df.tolist(), strict=True))
    assert set(some.terms) == set(sorted(df, key=lambda term: (-df[term], term.encode()))[:1000])
    column = {term: t for t, term in enumerate(whole.terms)}
    shown = [column[term] for term in some.terms]
    assert some.terms == sorted(some.terms, key=str.encode)
    for mine, theirs in [(some.idf, whole.idf), (some.max_score, whole.max_score), (some.df, whole.df)]:
        assert (mine == theirs[shown]).all()
    few = sample_rows[:100]
    assert (some.transform(few) != whole.transform(few)[:, shown]).nnz == 0
    drawn = {r.new.lower() for row, text in enumerate(few) for r in some.replacements(text, row=row)[1]}
    assert drawn < set(some.terms)
    # A word keeps its score even if its term was removed by the filter.
    for text in few[:20]:
        assert [w.score for w in some.explain(text)] == [w.score for w in whole.explain(text)]
    assert not some.idf.flags.writeable
    refuses("does not contain all terms", some.save, tmp_path / "other")
    refuses(r"none of the [0-9]+ terms is left", TfidfIndex.open, tmp_path / "tfidf", min_df=10**9)
    ran(cse_here("augment", sample, "--min-df", 3, "--max-terms", 1000, "-o", "out.txt", "--json", cwd=tmp_path))
    assert (tmp_path / "out.txt").read_text(encoding="utf8").split("\n")[:-1] == some.augment(sample_rows)
