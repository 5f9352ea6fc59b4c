"""Tests of tokenizers (treebank compared with NLTK, case, Unicode normal forms) and of the terms of an index."""

import pytest

from cse import InputError, TfidfIndex
from cse._core import tokenize
from cse.tfidf.options import word_options

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
@pytest.mark.parametrize("folder", ["corpus/wiki10k.txt", "sts_raw"])
def test_treebank_equals_nltk_on_wikipedia_and_every_sts_file(nltk_tokens, shared, folder):
    root = shared(folder)
    files = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
    assert files
    words = word_options(tokenizer="treebank")
    compared = set()
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf8", errors="replace").split("\n")):
            whole = {line} if number % 10 == 0 else set()  # a line with its tabs holds no other words than its fields
            for field in whole | {*line.split("\t")}:
                if field not in compared:
                    compared.add(field)
                    assert [term for _, _, term in tokenize(field, words)] == nltk_tokens(field), (file, field)
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


def test_an_index_stores_its_word_options(tmp_path, cse):
    (tmp_path / "a.txt").write_text("The \uff26ox\nthe fox\n", encoding="utf8")
    done = cse("build-tfidf", "a.txt", "--no-lowercase", "--nfkc", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    index = TfidfIndex.open(tmp_path / "tfidf")
    assert index.terms == ["Fox", "The", "fox", "the"]
    assert index.words == {"tokenizer": "unicode", "lowercase": False, "nfkc": True}
    assert index.transform(["the \uff26ox"]).indices.tolist() == [0, 3]
    TfidfIndex.build(tmp_path / "a.txt").save(tmp_path / "other")
    with pytest.raises(InputError, match="unicode, case kept, NFKC"):
        TfidfIndex.merge([tmp_path / "other", tmp_path / "tfidf"], tmp_path / "all")


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
    with pytest.raises(InputError, match="treebank"):
        index.augment(sample_rows[:1], surface="keep")


def test_a_filtered_index_has_only_some_terms_and_cannot_be_saved(sample, sample_rows, tmp_path, cse):
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
    with pytest.raises(InputError, match="does not contain all terms"):
        some.save(tmp_path / "other")
    with pytest.raises(InputError, match=r"none of the [0-9]+ terms is left"):
        TfidfIndex.open(tmp_path / "tfidf", min_df=10**9)
    done = cse("augment", sample, "--min-df", 3, "--max-terms", 1000, "-o", "out.txt", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.txt").read_text(encoding="utf8").split("\n")[:-1] == some.augment(sample_rows)
