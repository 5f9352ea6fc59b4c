"""UNA negatives equal those of the reference implementation and follow the published distribution."""

import json
import math

import numpy as np
import pytest
from scipy.stats import chisquare

from cse import InputError, TfidfIndex
from una_reference import ReferenceIndex, probabilities


@pytest.fixture(scope="module")
def words(sample_rows):
    """An index with the whitespace tokenizer, which the reference implementation uses."""
    return TfidfIndex.from_texts(sample_rows[:2000], tokenizer="whitespace")


@pytest.fixture(scope="module")
def twin(sample_rows):
    """The index of the reference implementation."""
    return ReferenceIndex.build(sample_rows[:2000])


def make(tmp_path, text, **options):
    path = tmp_path / "corpus.txt"
    path.write_text(text, encoding="utf8")
    return TfidfIndex.build(path, **options)


@pytest.mark.parametrize(("beta", "radius"), [(0.5, 303), (0.3, 4000), (0.9, 1)])
def test_negatives_equal_those_of_the_reference(words, twin, sample_rows, beta, radius):
    assert words.default_radius == twin.default_radius() == len(words) // 100
    unknown = ["zqxv", "Zqxv blorgh!? the", "ZQXV and FLIMFLAM zqxv", "the the the", "zzyzx " * 70, "I I'm McZqxv É"]
    texts = dict(enumerate([*unknown, *sample_rows[: 2000 - 6]]))
    rows = [*range(len(unknown)), *range(79, 2000, 79)]
    options = {"seed": 7, "epoch": 3, "beta": beta, "radius": radius}
    ours = words.augment([texts[row] for row in rows], rows=rows, **options)
    assert ours == [twin.augment(texts[row], row=row, **options) for row in rows]


@pytest.mark.parametrize("replace_which", ["tfidf", "random"])
@pytest.mark.parametrize("replace_with", ["radius", "random"])
@pytest.mark.parametrize("mode", ["negative", "positive"])
def test_every_ablation_and_mode_equals_the_reference(words, twin, sample_rows, replace_which, replace_with, mode):
    rows = range(5, 2000, 197)
    texts = [*(sample_rows[row] for row in rows), "two words", "one", "zqxv blorgh never seen"]
    options = {"replace_which": replace_which, "replace_with": replace_with, "mode": mode}
    options |= {"seed": 3, "epoch": 1, "copy": 2, "beta": 0.4, "radius": 200}
    ours = words.augment(texts, rows=[*rows, 1, 2, 3], **options)
    assert ours == [twin.augment(text, row=row, **options) for text, row in zip(texts, [*rows, 1, 2, 3], strict=True)]


def test_a_radius_may_be_a_percentage_of_the_vocabulary(sample_index, sample_rows):
    v = len(sample_index)
    assert sample_index.ranks("5%") == round(0.05 * v)
    assert sample_index.ranks("100%") == v
    assert sample_index.ranks("0.0001%") == 1
    few = sample_rows[:50]
    assert sample_index.augment(few, radius="2%") == sample_index.augment(few, radius=round(0.02 * v))
    for radius in ("0%", "101%", "x", "5 percent", "", "%"):
        with pytest.raises(InputError, match="--radius"):
            sample_index.augment(few, radius=radius)


@pytest.mark.parametrize("surface", ["keep", "plain"])
def test_json_records_list_the_replaced_words(indexed, sample_index, sample_rows, cse, tmp_path, surface):
    texts = [*sample_rows[:30], "", 'Caf\u00e9 \U0001f600 "quoted" na\u00efve zqxv']
    few = tmp_path / "few.txt"
    few.write_text("\n".join(texts), encoding="utf8")
    done = cse("augment", few, "--format", "jsonl", "--copies", 2, "--surface", surface, cwd=indexed)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(r["row"], r["copy"]) for r in records] == [(row, copy) for row in range(len(texts)) for copy in (0, 1)]
    rank = {sample_index.terms[t]: place for place, t in enumerate(sample_index.by_rank, start=1)}
    for record in records:
        row, copy = record["row"], record["copy"]
        output, replaced = sample_index.replacements(texts[row], row=row, copy=copy, surface=surface)
        assert (record["text"], record["output"]) == (texts[row], output)
        for found, word in zip(record["replaced"], replaced, strict=True):
            assert (tuple(found["span"]), tuple(found["new_span"])) == (word.span, word.new_span)
            assert rank[found["new"].lower()] == found["new_rank"]
            assert rank.get(found["old"].lower(), found["rank"]) == found["rank"]


def frequencies(index, word, draws, radius, **options):
    """Replaces ``word`` ``draws`` times; returns how often each rank was drawn, and the rank of ``word``."""
    rank = {index.terms[t]: place for place, t in enumerate(index.by_rank)}
    negatives = index.augment([word] * draws, seed=5, radius=radius, **options)
    counts = np.zeros(len(index), dtype=int)
    for negative in negatives:
        counts[rank[negative.lower()]] += 1
    return counts, rank[word]


@pytest.mark.parametrize("place", ["first", "rare", "common", "last", "middle"])
def test_replacements_are_drawn_in_proportion_to_their_maximum_scores(sample_index, place):
    index, radius, draws = sample_index, 40, 200_000
    v = len(index)
    by_df = sorted(range(v), key=lambda t: (index.df[t], index.terms[t]))
    terms = {"first": index.by_rank[0], "middle": index.by_rank[v // 2], "last": index.by_rank[v - 1]}
    term = {**terms, "rare": by_df[5], "common": by_df[-20]}[place]
    counts, own = frequencies(index, index.terms[term], draws, radius)
    window = np.array([rank for rank in range(max(0, own - radius), min(v, own + radius + 1)) if rank != own])
    assert counts.sum() == counts[window].sum()
    score = index.max_score[index.by_rank[window]]
    assert chisquare(counts[window], draws * score / score.sum()).pvalue > 1e-4


def test_terms_are_drawn_uniformly_if_all_scores_are_zero(tmp_path):
    index = make(tmp_path, "a b c d e\n")  # one document: every idf is 0
    assert index.max_score.sum() == 0
    counts, own = frequencies(index, "c", 20_000, 2)
    assert counts[own] == 0
    assert chisquare(counts[np.arange(5) != own]).pvalue > 1e-4


def test_probabilities_follow_the_published_formula():
    scores = [0.1, 0.5, 0.9, 0.3]
    p, all_equal = probabilities(scores, 0.5)
    total = sum(s - 0.1 for s in scores)
    expected = [min(1, 0.5 * 4 * (s - 0.1) / total) for s in scores]
    assert not all_equal
    assert p == pytest.approx(expected)
    assert max(expected) == 1  # 1.14, clipped at 1; if no value reached 1, the largest would be set to 1
    p, _ = probabilities([0.1, 0.5, 0.5, 0.4, 0.45, 0.3], 0.2)
    assert p[1] == p[2] == 1 > max(p[3:])


def test_explained_scores_and_probabilities_equal_those_of_the_reference(words, twin, sample_rows):
    for text in sample_rows[:200]:
        found = words.explain(text, beta=0.5)
        scores = twin.scores([word.lower() for word in text.split()])
        assert [word.score for word in found] == pytest.approx(scores, rel=1e-12)
        assert [word.p for word in found] == pytest.approx(probabilities(scores, 0.5)[0], rel=1e-9)


@pytest.mark.parametrize("beta", [0.3, 0.5, 0.8])
def test_number_of_replaced_words_matches_the_probabilities(sample_index, sample_rows, beta):
    rows = sample_rows[:3000]
    _, report = sample_index.augment_report(rows, beta=beta)
    expected = sum(word.p for text in rows for word in sample_index.explain(text, beta=beta, samples=0))
    assert report.replaced == pytest.approx(expected, rel=0.01)
    # With beta 0.3 the share of replaced words exceeds beta (a word is always replaced); with 0.8 it is below (p <= 1).
    if beta == 0.5:
        assert report.replaced / report.words == pytest.approx(beta, abs=0.03)
    assert report.unchanged == 0


def test_only_replaced_words_change(sample_index, sample_rows):
    for row, text in enumerate(sample_rows[:300]):
        negative, spans = sample_index.replacements(text, row=row, seed=9)
        assert negative == sample_index.augment([text], rows=[row], seed=9)[0]
        at_old = at_new = 0
        for new in spans:
            (old_start, old_end), (new_start, new_end) = new.span, new.new_span
            assert 0 < new.p <= 1
            assert (new.old, new.new) == (text[old_start:old_end], negative[new_start:new_end])
            assert text[at_old:old_start] == negative[at_new:new_start]
            assert text[old_start:old_end] != negative[new_start:new_end]
            at_old, at_new = old_end, new_end
        assert text[at_old:] == negative[at_new:]


def test_replacements_take_the_case_of_the_replaced_word(tmp_path, sample_index):
    index = make(tmp_path, "".join(f"w{chr(97 + i)} x\n" for i in range(26)))
    made = {text: index.augment([text], radius=5)[0] for text in ("wa", "Wa", "WA", "wA", "McWa")}
    assert made["WA"].isupper()
    assert made["Wa"] == made["Wa"].capitalize()
    assert all(made[text].islower() for text in ("wa", "wA", "McWa"))
    for negative in sample_index.augment(["I", "I'm", "I\u2019ll"]):  # the pronoun is no capitalised word
        assert negative == negative.lower()


def test_a_replacement_of_a_capitalised_word_takes_title_case_not_upper_case():
    index = TfidfIndex.from_texts(["\ufb01nal", "\u01c6emper", "\u10d2\u10d0", "plain"])
    made = set(index.augment(["Hello"] * 200, seed=3, beta=1.0, radius=1000))
    assert made == {"Final", "\u01c5emper", "\u10d2\u10d0", "Plain"}
    assert set(index.augment(["\u01c5hello"] * 200, seed=3, beta=1.0, radius=1000)) == made


def test_a_word_that_touches_another_is_not_replaced(tmp_path):
    """Each ideograph is a separate word, and nothing separates it from the next one."""
    index = make(tmp_path, "\u5317\u4eac\u5927\u5b66\none two three\n")
    text = "\u5317\u4eac"
    assert [(word.p, word.replaceable, word.samples) for word in index.explain(text)] == [(0, False, [])] * 2
    (known,) = index.explain("one", samples=5)
    assert known.replaceable
    assert len(known.samples) == 5
    negatives, report = index.augment_report([text])
    assert negatives == [text]
    assert report.unchanged == 1


def test_rows_without_words_or_with_the_only_term_stay_unchanged_and_are_counted(sample_index, tmp_path):
    texts = ["", "  \t", "...", "\u2026 \u2014 !"]
    negatives, report = sample_index.augment_report(texts)
    assert negatives == texts
    assert (report.unchanged, report.blank) == (4, 2)
    negatives, report = make(tmp_path, "word\nword word\n").augment_report(["word", "Word!"])
    assert negatives == ["word", "Word!"]
    assert report.unchanged == 2


def test_lone_surrogates_are_replaced_and_counted(sample_index):
    negatives, report = sample_index.augment_report(["a \ud800 broken \udfff string of words"])
    assert report.repaired == 1
    assert "\ufffd" in negatives[0]
    negatives[0].encode("utf8")
    text = "a \ud800 broken string of rare words"
    _, spans = sample_index.replacements(text, beta=1.0)
    assert [new.old for new in spans][-2:] == ["rare", "words"]
    assert all(new.new.isalnum() or "'" in new.new for new in spans)


def test_the_word_that_is_always_replaced_is_drawn_uniformly_among_words_with_equal_scores(tmp_path):
    index = make(tmp_path, "".join(f"{word} filler\n" for word in "abcdefgh"))
    hits = np.zeros(4, dtype=int)
    for row in range(4000):
        _, spans = index.replacements("a b c d", row=row, beta=0.0)
        assert len(spans) == 1
        hits[spans[0].span[0] // 2] += 1
    assert chisquare(hits).pvalue > 1e-4


@pytest.mark.parametrize(
    ("name", "value"),
    [("radius", 0), ("radius", -1), ("rows", [1, 2]), ("beta", 1.5), ("beta", math.nan), ("surface", "odd")],
)
def test_errors_name_the_invalid_argument(sample_index, name, value):
    with pytest.raises(InputError, match=name):
        sample_index.augment(["one sentence"], **{name: value})
    with pytest.raises(InputError, match="a list of texts was expected"):
        sample_index.augment("one sentence")


def test_bench_augment_compares_the_core_with_a_plain_loop_of_the_same_law(cse, short_corpus):
    found = json.loads(cse("bench", "augment", short_corpus, "--repeat", "3", "--json").stdout)
    core, plain = found["cse"], found["plain Python"]
    assert core["rows"] == plain["rows"] == 600
    assert plain["ratio"] == core["per_minute"] / plain["per_minute"]
    assert "plain Python" in cse("bench", "augment", short_corpus, "--repeat", "1").stdout
    wrong = cse("bench", "encode", short_corpus)
    assert wrong.returncode == 2
    assert "augment" in wrong.stderr


@pytest.mark.parametrize("change", ["radius", "idf"])
def test_the_plain_loop_of_bench_is_refused_if_its_law_differs(short_corpus, short_rows, change):
    from cse.tfidf.speed import PlainLoop, check

    index = TfidfIndex.build(short_corpus, tokenizer="whitespace")
    loop = PlainLoop(index)
    check(index, loop, short_rows[:100])
    if change == "radius":
        loop.radius //= 2
    else:
        loop.idf = dict.fromkeys(loop.idf, 1.0)
    with pytest.raises(AssertionError):
        check(index, loop, short_rows[:100])
