"""CARDS: words whose case is switched, and negatives drawn from the nearest rows of the corpus."""

import math
from collections import Counter

import numpy as np
import pytest

from cse import Encoder, InputError
from cse.context import TextContext
from cse.data.corpus import Corpus
from cse.rng import Draws
from cse.training.setup import prepare
from cse_papers import cards
from cse_papers.cards import Retrieved, RetrievedOptions, SwitchCase, SwitchCaseOptions, nearest_others, switched
from runs import first_batches

TEXT = "Thebes  held onto power until\tthe 12th Dynasty, when its (first) king 東京 b.c. died."


def switch(texts, rows, epoch=0, **options):
    return SwitchCase(SwitchCaseOptions(**options), TextContext())(texts, rows, Draws(3, epoch))


def other_case(word):
    """As in the released code: a lower-case first letter becomes upper case, any other letter becomes lower case."""
    if word[0].isalpha():
        return (word[0].upper() if word[0].islower() else word[0].lower()) + word[1:]
    return word


def test_v2_switches_each_word_independently_and_keeps_white_space():
    rows = np.arange(3000)
    found = switch([TEXT] * 3000, rows, probability=0.3)
    words, counts = TEXT.split(), Counter()
    u = Draws(3, 0).uniform(rows, "switch-case", len(words))
    for text, keys in zip(found, u, strict=True):
        assert text.split() == [other_case(w) if key < 0.3 else w for w, key in zip(words, keys, strict=True)]
        assert [len(part) for part in text.split(" ")] == [len(part) for part in TEXT.split(" ")]
        counts.update(place for place, word in enumerate(text.split()) if word != words[place])
    cased = [place for place, word in enumerate(words) if word[0].isascii() and word[0].isalpha()]
    assert sorted(counts) == cased
    # Within five standard deviations of 900.
    assert all(abs(count - 900) < 5 * math.sqrt(3000 * 0.3 * 0.7) for count in counts.values())


@pytest.mark.parametrize(("probability", "count"), [(0.05, 1), (0.4, 6), (1.0, 12)])
def test_v1_switches_a_fixed_number_of_words_that_have_a_case(probability, count):
    rows, words, counts = np.arange(2000), TEXT.split(), Counter()
    for text in switch([TEXT] * 2000, rows, probability=probability, variant="v1"):
        moved = [place for place, word in enumerate(text.split()) if word != words[place]]
        assert len(moved) == count  # of 15 words, 12 have a case
        assert all(text.split()[place] == other_case(words[place]) for place in moved)
        counts.update(moved)
    assert len(counts) == 12
    expected = 2000 * count / 12
    assert all(abs(each - expected) <= 5 * math.sqrt(expected * (1 - count / 12)) for each in counts.values())


def test_switched_letters_and_texts_without_words():
    assert [switched(letter) for letter in "aZéЖß東1ⓐ"] == ["A", "z", "É", "ж", "SS", "東", "1", "ⓐ"]
    for variant in ("v1", "v2"):
        texts = ["", " ", "12 東京"]
        assert switch(texts, np.arange(3), probability=1.0, variant=variant) == texts


def test_a_tokenizer_that_lower_cases_makes_all_positives_unchanged(run_config):
    run = prepare(
        run_config.replace(positive="switch-case", options={"switch-case": {"probability": 1.0}}, max_length=24)
    )
    (batch,) = first_batches(run)
    assert batch.blocks["positive"].texts != batch.blocks["anchor"].texts
    assert batch.unchanged == {"positive": len(batch.rows)}
    assert batch.blocks["positive"].mask is None  # it has another dropout mask
    assert "the edits of --positive change the tokens of none of" in run.facts["warning"]
    assert "the edits of --positive" not in prepare(run_config.replace(positive="delete")).facts.get("warning", "")


@pytest.mark.parametrize("together", [1, 7, 100])
@pytest.mark.parametrize(("pool", "count"), [(40, 9), (33, 9), (12, 30)])
def test_the_nearest_vectors_are_those_of_a_loop(together, pool, count, monkeypatch):
    monkeypatch.setattr(cards, "TOGETHER", together)
    x = np.random.default_rng(0).standard_normal((40, 6))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    done = []
    found = nearest_others(x.astype(np.float32), pool, count, "cpu", done.append)
    assert found.dtype == np.int32
    assert found.shape == (40, min(count, pool - 1))
    assert sum(done) == 40
    for i in range(40):
        ranked = sorted((j for j in range(pool) if j != i), key=lambda j: -float(x[i] @ x[j]))
        assert found[i].tolist() == sorted(ranked[: min(count, pool - 1)])


@pytest.fixture
def corpus(sample_rows):
    """20 distinct sentences in 26 rows: two of the sentences occur four times each; row 9 is blank."""
    texts = list(sample_rows[:20])
    return Corpus.from_texts([*texts[:9], " ", *texts[9:], *[texts[4]] * 3, *[texts[11]] * 3][:27])


def context_of(corpus, held_out=(), **values):
    rows = np.array([row for row in corpus.filled() if row not in held_out])
    return TextContext(corpus=corpus, rows=rows, **values)


@pytest.mark.parametrize("nearest", [6, 65])
def test_negatives_are_drawn_uniformly_from_the_other_texts_up_to_a_rank(corpus, tiny_bert, nearest):
    held_out = (2, 14)
    context = context_of(corpus, held_out)
    method = Retrieved(RetrievedOptions(str(tiny_bert), nearest), context)
    rows = np.array(corpus.filled())
    texts, encoder = corpus.take(rows), Encoder(tiny_bert, device="cpu")
    vectors = encoder.encode(texts).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    counts = [Counter() for _ in rows]
    for epoch in range(300):
        drawn = method(texts, rows, Draws(0, epoch))
        for count, text in zip(counts, drawn, strict=True):
            count[text] += 1
    for own, vector, count in zip(texts, vectors, counts, strict=True):
        # Held-out rows have neighbours among the rows that are trained on, and are never neighbours themselves.
        order = [texts[at] for at in np.argsort(-(vectors @ vector), kind="stable") if rows[at] in context.rows]
        others = [text for text in dict.fromkeys(order) if text != own]
        expected = others[: min(nearest, len(method.pool)) - 1]
        assert set(count) == set(expected), own
        mean = 300 / len(expected)
        assert all(abs(each - mean) <= 5.5 * math.sqrt(mean) for each in count.values())


def test_rows_with_equal_texts_have_the_same_neighbours_but_their_own_draws(corpus, tiny_bert, monkeypatch):
    options = RetrievedOptions(str(tiny_bert), 9)
    method = Retrieved(options, context_of(corpus))
    rows = np.array([row for row in corpus.filled() if corpus.take([row]) == corpus.take([4])])
    assert len(rows) == 4
    assert len({tuple(method.near[method.place[row]]) for row in rows}) == 1
    assert method.near.shape == (20, 8)
    assert any(len(set(method(corpus.take(rows), rows, Draws(0, epoch)))) > 1 for epoch in range(10))
    monkeypatch.setattr(cards, "BLOCK", 3)
    monkeypatch.setattr(cards, "COSINES", 50)
    parts = Retrieved(options, context_of(corpus))
    assert np.array_equal(parts.near, method.near)
    assert np.array_equal(parts.place, method.place)


def test_retrieved_negatives_need_an_encoder_and_two_texts(corpus, tiny_bert, run_config, tmp_path):
    assert prepare(run_config.replace(negatives=("retrieved",)))  # by the model before training
    with pytest.raises(InputError, match="missing"):
        Retrieved(RetrievedOptions(str(tmp_path / "missing")), context_of(corpus))
    pair = context_of(Corpus.from_texts(["one text", "another text"]))
    method = Retrieved(RetrievedOptions(str(tiny_bert)), pair)
    assert method(["one text", "another text"], np.arange(2), Draws(0, 0)) == ["another text", "one text"]
    with pytest.raises(InputError, match=r"retrieved\.nearest"):
        run_config.replace(negatives=("retrieved",), options={"retrieved": {"model": "x", "nearest": 1}})


def test_labelled_pairs_have_neighbours_of_their_complete_rows(run_config, tmp_path, sample_rows, tiny_bert):
    lines = [f"{anchor}\t{positive}" for anchor, positive in zip(sample_rows[:40], sample_rows[40:80], strict=True)]
    lines[5] = f"{sample_rows[5]}\t"
    (tmp_path / "pairs.tsv").write_text("\n".join(["anchor\tpositive", *lines]) + "\n", encoding="utf8")
    options = {"retrieved": {"model": str(tiny_bert), "nearest": 100}}
    config = run_config.replace(corpus=(), pairs=(str(tmp_path / "pairs.tsv"),), negatives=("retrieved",))
    run = prepare(config.replace(positive="labelled", options=options))
    rows = np.array([row for row in range(40) if row != 5])
    (method,) = run.batches.negatives
    drawn = {text for epoch in range(20) for text in method([""] * 39, rows, Draws(0, epoch))}
    assert sample_rows[5] not in drawn
    assert drawn <= set(sample_rows[:40])
    assert len(drawn) > 30
