"""UNA's negatives: equal to the twin's draw by draw, distributed as published, a function of their key alone."""

import math

import numpy as np
import pytest
from scipy.stats import chisquare

from cse import InputError, TfidfIndex
from cse._reference import ReferenceIndex, chacha8, in_case_of, probabilities


@pytest.fixture(scope="module")
def words(sample):
    """An index by white space, as the twin's."""
    return TfidfIndex.build(sample, tokenizer="whitespace")


@pytest.fixture(scope="module")
def twin(sample_rows):
    return ReferenceIndex.build(sample_rows)


def make(tmp_path, text, **options):
    path = tmp_path / "corpus.txt"
    path.write_text(text, encoding="utf8")
    return TfidfIndex.build(path, **options)


@pytest.mark.parametrize(("beta", "radius"), [(0.5, 303), (0.3, 4000), (0.9, 1)])
def test_negatives_equal_the_twin_draw_by_draw(words, twin, sample_rows, beta, radius):
    rows = range(0, 10_000, 97)
    texts = [sample_rows[row] for row in rows]
    ours = words.augment(texts, seed=7, epoch=3, rows=list(rows), beta=beta, radius=radius)
    for text, row, negative in zip(texts, rows, ours, strict=True):
        assert negative == twin.augment(text, seed=7, epoch=3, row=row, beta=beta, radius=radius)


def test_words_never_seen_equal_the_twin(words, twin):
    texts = [
        "zqxv",
        "Zqxv blorgh!? the",
        "ZQXV and FLIMFLAM zqxv",
        "the the the",
        "zzyzx " * 70,
        "I I'm McZqxv \u00c9blouissant",
    ]
    ours = words.augment(texts, seed=1, radius=50)
    expected = [twin.augment(t, seed=1, epoch=0, row=row, beta=0.5, radius=50) for row, t in enumerate(texts)]
    assert ours == expected


def test_default_radius_is_a_hundredth_of_the_vocabulary(words, twin):
    assert words.default_radius == twin.default_radius() == len(words) // 100


def frequencies(index, word, draws, radius):
    """How often each rank comes up for a one-word sentence, which is always replaced."""
    rank = {index.terms[t]: place for place, t in enumerate(index.by_rank)}
    negatives = index.augment([word] * draws, seed=5, radius=radius)
    counts = np.zeros(len(index), dtype=int)
    for negative in negatives:
        counts[rank[negative.lower()]] += 1
    return counts, rank[word]


@pytest.mark.parametrize("place", ["first", "rare", "common", "last", "middle"])
def test_draws_follow_the_maximum_scores_within_the_radius(sample_index, place):
    index, radius, draws = sample_index, 40, 200_000
    v = len(index)
    ranks = {"first": 0, "middle": v // 2, "last": v - 1}
    by_df = sorted(range(v), key=lambda t: (index.df[t], index.terms[t]))
    term = {"rare": by_df[5], "common": by_df[-20]}.get(place, index.by_rank[ranks.get(place, 0)])
    counts, own = frequencies(index, index.terms[term], draws, radius)
    low, high = max(0, own - radius), min(v, own + radius + 1)
    assert counts[own] == 0
    assert counts[:low].sum() == counts[high:].sum() == 0
    window = np.array([rank for rank in range(low, high) if rank != own])
    score = index.max_score[index.by_rank[window]]
    assert len(window) in (radius, 2 * radius) or place in ("rare", "common")
    p_value = chisquare(counts[window], draws * score / score.sum()).pvalue
    assert p_value > 1e-4


def test_a_window_without_mass_is_drawn_from_uniformly(tmp_path):
    index = make(tmp_path, "a b c d e\n")  # one document: every idf is 0
    assert index.max_score.sum() == 0
    counts, own = frequencies(index, "c", 20_000, 2)
    assert counts[own] == 0
    assert chisquare(counts[np.arange(5) != own]).pvalue > 1e-4


def test_probabilities_are_the_formula():
    scores = [0.1, 0.5, 0.9, 0.3]
    p, all_equal = probabilities(scores, 0.5)
    total = sum(s - 0.1 for s in scores)
    expected = [min(1, 0.5 * 4 * (s - 0.1) / total) for s in scores]
    assert not all_equal
    assert p == pytest.approx(expected)
    assert max(expected) == 1  # reached by itself here


def test_the_largest_probability_becomes_one_and_all_that_share_it():
    p, _ = probabilities([0.1, 0.5, 0.5, 0.4, 0.45, 0.3], 0.2)
    assert p[1] == p[2] == 1
    assert max(p[3:]) < 1


def test_probability_shown_equals_the_twin(words, twin, sample_rows):
    for text in sample_rows[:200]:
        found = words.explain(text, beta=0.5)
        scores = twin.scores([word.lower() for word in text.split()])
        assert [word.score for word in found] == pytest.approx(scores, rel=1e-12)
        assert [word.p for word in found] == pytest.approx(probabilities(scores, 0.5)[0], rel=1e-9)


@pytest.mark.parametrize("beta", [0.3, 0.5, 0.8])
def test_as_many_words_are_replaced_as_the_probabilities_say(sample_index, sample_rows, beta):
    _, report = sample_index.augment_report(sample_rows, beta=beta)
    expected = sum(word.p for text in sample_rows for word in sample_index.explain(text, beta=beta, samples=0))
    assert report.replaced == pytest.approx(expected, rel=0.01)
    if beta == 0.5:  # lower, the forced word adds to it; higher, the cut at 1 takes from it
        assert report.replaced / report.words == pytest.approx(beta, abs=0.03)
    assert report.unchanged == 0


def test_every_sentence_with_a_word_changes(sample_index, sample_rows):
    negatives = sample_index.augment(sample_rows, beta=0.0, seed=2)
    assert all(negative != text for negative, text in zip(negatives, sample_rows, strict=True))


def test_rows_do_not_depend_on_batch_or_order(sample_index, sample_rows):
    rows = list(range(1000))
    whole = sample_index.augment(sample_rows[:1000], seed=4, rows=rows)
    single = [sample_index.augment([sample_rows[row]], seed=4, rows=[row])[0] for row in rows]
    backwards = sample_index.augment(sample_rows[:1000][::-1], seed=4, rows=rows[::-1])[::-1]
    assert whole == single == backwards


def test_seed_epoch_row_and_copy_each_matter(sample_index, sample_rows):
    base = dict(seed=1, epoch=1, rows=[1], copy=1)
    text = [max(sample_rows, key=len)]
    versions = [base, {**base, "seed": 2}, {**base, "epoch": 2}, {**base, "rows": [2]}, {**base, "copy": 2}]
    assert len({sample_index.augment(text, **version)[0] for version in versions}) == 5


def test_only_replaced_words_change(sample_index, sample_rows):
    for row, text in enumerate(sample_rows[:300]):
        negative, spans = sample_index.replacements(text, row=row, seed=9)
        assert negative == sample_index.augment([text], rows=[row], seed=9)[0]
        at_old = at_new = 0
        for (old_start, old_end), (new_start, new_end), p in spans:
            assert 0 < p <= 1
            assert text[at_old:old_start] == negative[at_new:new_start]
            assert text[old_start:old_end] != negative[new_start:new_end]
            at_old, at_new = old_end, new_end
        assert text[at_old:] == negative[at_new:]


def test_case_is_carried_over(tmp_path):
    index = make(tmp_path, "".join(f"w{chr(97 + i)} x\n" for i in range(26)))
    word = {"lower": "wa", "Capital": "Wa", "UPPER": "WA", "Mixed": "wA", "McMixed": "McWa"}
    for name, text in word.items():
        (negative,) = index.augment([text], radius=5)
        if name == "UPPER":
            assert negative.isupper()
        elif name == "Capital":
            assert negative[0].isupper()
            assert negative[1:].islower()
        else:
            assert negative.islower(), (name, negative)


@pytest.mark.parametrize("text", ["I", "I'm", "I\u2019ll"])
def test_i_gets_a_lower_case_replacement(sample_index, text):
    assert sample_index.augment([text])[0].islower() or not any(c.isalpha() for c in sample_index.augment([text])[0])


def test_case_rules_of_the_twin():
    assert in_case_of("Paris", "rome") == "Rome"
    assert in_case_of("NATO", "rome") == "ROME"
    assert in_case_of("A", "rome") == "Rome"
    assert in_case_of("iPhone", "rome") == "rome"
    assert in_case_of("SS", "\u00df") == "\u00df"  # "SS" again in capitals


def test_a_word_that_touches_another_is_not_replaced(tmp_path):
    """Ideographs are words one by one, with no boundary a reader would see."""
    index = make(tmp_path, "\u5317\u4eac\u5927\u5b66\none two three\n")
    text = "\u5317\u4eac"
    assert [word.p for word in index.explain(text)] == [0, 0]
    negatives, report = index.augment_report([text])
    assert negatives == [text]
    assert report.unchanged == 1


def test_rows_without_a_word_come_back_and_are_counted(sample_index):
    texts = ["", "  \t", "...", "\u2026 \u2014 !"]
    negatives, report = sample_index.augment_report(texts)
    assert negatives == texts
    assert (report.unchanged, report.blank) == (4, 2)


def test_a_vocabulary_of_one_term_changes_nothing(tmp_path):
    index = make(tmp_path, "word\nword word\n")
    negatives, report = index.augment_report(["word", "Word!"])
    assert negatives == ["word", "Word!"]
    assert report.unchanged == 2


def test_lone_surrogates_are_replaced_and_counted(sample_index):
    negatives, report = sample_index.augment_report(["a \ud800 broken \udfff string of words"])
    assert report.repaired == 1
    assert "\ufffd" in negatives[0]
    negatives[0].encode("utf8")
    text = "a \ud800 broken string of rare words"
    negative, spans = sample_index.replacements(text, beta=1.0)
    assert [text[start:end] for (start, end), _, _ in spans][-2:] == ["rare", "words"]
    assert all(negative[start:end].isalnum() or "'" in negative[start:end] for _, (start, end), _ in spans)


def test_plain_surface_is_lower_cased_terms_joined_by_spaces(sample_index):
    text = "The  Quick, brown FOX\u2014jumped!"
    negative, spans = sample_index.replacements(text, surface="plain")
    assert negative.split(" ") == negative.split()
    assert negative == negative.lower()
    assert len(negative.split()) == 5
    assert spans


def test_equal_scores_force_one_position_chosen_evenly(tmp_path):
    index = make(tmp_path, "".join(f"{word} filler\n" for word in "abcdefgh"))
    hits = np.zeros(4, dtype=int)
    for row in range(4000):
        _, spans = index.replacements("a b c d", row=row, beta=0.0)
        assert len(spans) == 1
        hits[spans[0][0][0] // 2] += 1
    assert chisquare(hits).pvalue > 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": 0}, "radius"),
        ({"radius": -1}, "radius"),
        ({"seed": -1}, "seed"),
        ({"epoch": 2**64}, "epoch"),
        ({"rows": [-1]}, "rows"),
        ({"beta": 1.5}, "beta"),
        ({"beta": math.nan}, "beta"),
        ({"surface": "odd"}, "surface"),
        ({"rows": [1, 2]}, "rows"),
    ],
)
def test_wrong_options_name_themselves(sample_index, options, message):
    with pytest.raises(InputError, match=message):
        sample_index.augment(["one sentence"], **options)


def test_a_string_is_not_a_list_of_sentences(sample_index):
    with pytest.raises(InputError, match="list of sentences"):
        sample_index.augment("one sentence")


def test_the_random_stream_is_chacha(sample_index):
    """The first numbers of the twin's stream are the core's."""
    from cse.keyed import bits

    core = bits(3, 4, np.array([5]), 6)[0]
    assert next(chacha8(3, 4, 5, 6)) == int(core >> np.uint64(11)) * 2.0**-53
