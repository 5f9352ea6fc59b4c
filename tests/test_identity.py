"""When two texts are the same, for all parts that decide it: batches, held-out rows, judges, mined rows."""

import html
import itertools
import math
import re
import sys
import unicodedata

import numpy as np
import pytest
import regex
import torch

from cse import Encoder, SearchIndex
from cse._core import is_blank
from cse.data import cache
from cse.data.corpus import Corpus, hold_out
from cse.evaluation.geometry import SplitHalf
from cse.evaluation.labels import choose_labelled
from cse.evaluation.options import SplitHalfOptions
from cse.identity import FEWEST_LETTERS, common_keys, distinct, letter_keys, row_keys, text_groups
from cse.losses.contrastive import contrastive_loss
from cse.search.mining import QueryRows
from cse.training.setup import prepare
from cse.training.step.encode import Inputs, gathered_keys
from cse.training.step.ranks import World
from cse.views import Views, entry_keys, roles_by_name
from random_texts import WORDS, some_texts
from runs import first_batches, labelled_corpus, write_table

SPELLINGS = (str, str.upper, lambda text: f"  {text.replace(' ', chr(9) + ' ')} ", lambda text: text.title() + "\u2003")


def different(count, words=12):
    """Returns ``count`` different texts of some words."""
    draw = np.random.default_rng(1)
    return [f"{' '.join(draw.choice(WORDS, words))} number{row}" for row in range(count)]


# The characters that nobody sees, by another implementation of Unicode.
UNSEEN = regex.compile(r"[\p{Default_Ignorable_Code_Point}[\p{Cc}--[\t-\r\x1c-\x1f\x85]]]", regex.VERSION1)


def normalised(text):
    """The definition of the row key, in Python."""
    seen = UNSEEN.sub("", text)
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", seen).casefold())
    return " ".join(folded.split())


def test_the_row_key_is_that_of_the_seen_text_in_nfc_case_folded_with_white_space_collapsed():
    known = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]
    texts = [*known, *(f"a{each}\u0301 b" for each in known), "", " \t", "\u212bngstr\u00f6m", "A\u030angstro\u0308m"]
    keys, expected = row_keys(texts), [normalised(text) for text in texts]
    assert (keys == row_keys(expected)).all()
    assert len(set(keys.tolist())) == len(set(expected))
    assert [is_blank(text) for text in texts] == [not text for text in expected]


@pytest.mark.parametrize("unseen", ["\u200b", "\ufeff", "\xad", "\u200f", "\ufe0f", "\x08", "\u3164"])
def test_texts_that_differ_in_characters_that_nobody_sees_are_one_text_and_such_a_text_alone_is_blank(
    unseen, glove, tmp_path
):
    texts = some_texts(60)
    twins = [text.replace(" ", f" {unseen}", 1) for text in texts]
    assert distinct([*texts, *twins]) == texts
    assert (
        row_keys([f"a{unseen}b", "a\tb", "a\x85b", "a\u2028b"]).tolist()
        == row_keys(["ab", "a b", "a b", "a b"]).tolist()
    )
    corpus = Corpus.from_texts([*texts, *twins, unseen, f" {unseen}\t"])
    assert corpus.filled().tolist() == list(range(120))
    split = hold_out(corpus, 0, False)
    assert split.blank == 2
    index = SearchIndex.build(Encoder(glove), [*texts, unseen], tmp_path / "index")
    assert len(index.rows) == 60  # a blank row has no vector
    assert index.search([unseen]) == [[]]
    # Training and search keep the texts as they are.
    assert corpus.take([60]) == [twins[0]]


def test_a_corpus_has_the_row_keys_of_its_texts_in_memory_and_in_the_cache(tmp_path, monkeypatch):
    rows = [spell(text) for text in ("Stra\u00dfe und  Br\u00fccke", "the cat sat", "") for spell in SPELLINGS]
    path = tmp_path / "rows.txt"
    path.write_text("\n".join(rows) + "\n", encoding="utf8")
    small = Corpus.open([str(path)], cache=str(tmp_path))
    monkeypatch.setattr(cache, "IN_MEMORY_BYTES", 0)
    large = Corpus.open([str(path)], cache=str(tmp_path))
    assert small.folder is None
    assert large.folder is not None
    for corpus in (small, large):
        assert (corpus.row_keys() == row_keys(rows)).all()
    assert len(set(row_keys(rows).tolist())) == 3
    assert distinct(rows) == [rows[0], rows[4], rows[8]]


def test_keys_of_letters_are_those_of_a_regular_expression_and_groups_those_of_a_search():
    links, others = re.compile(r"https?://\S+|www\.\S+|@\w+", re.IGNORECASE), re.compile(r"[\W_]+")
    long = re.compile("[\u4e00-\u9fff\u3040-\u30ff]")

    def letters(text):
        return others.sub("", unicodedata.normalize("NFKD", text)).casefold()

    texts = [
        "",
        "short",
        "Straße ﬁne Ⅷ ² a̧b İstanbul",
        "_under_ @naïve_user hello &amp; WWW.x.y/z",
        "これは、良い本です",
    ]
    texts += [
        "&lt;b&gt;bold words&lt;/b&gt; http://t.co/a",
        "質が良い。",
        "질이 좋은 물건입니다",
        "это хорошая книга",
        "&eacute;" * 12,
    ]
    bare = [links.sub(" ", html.unescape(text)) for text in texts]
    for column, every in enumerate((texts, bare)):
        plain = [letters(text) for text in every]
        size = [len(text) + 2 * len(long.findall(text)) for text in plain]
        expected = np.where(np.array(size) >= FEWEST_LETTERS, row_keys(plain), 0)
        assert letter_keys(texts)[:, column].tolist() == expected.tolist()
    assert letter_keys(["質が良い"])[0].all()  # a sentence of four letters
    assert letter_keys([]).shape == (0, 2)
    draw = np.random.default_rng(0)
    for size in (1, 2, 30):
        keys, more = draw.integers(1, size + 1, size).astype(np.uint64), draw.integers(0, 2 * size, (size, 2))
        found, every = text_groups(keys, more.astype(np.uint64)), np.column_stack([keys, more])
        expected = list(range(size))
        for _ in range(size):
            for one, other in itertools.combinations(range(size), 2):
                if {*every[one].tolist()} & {*every[other].tolist()} - {0}:
                    expected[one] = expected[other] = min(expected[one], expected[other])
        pairs = {*zip(found.tolist(), expected, strict=True)}
        assert len({*found.tolist()}) == len({*expected}) == len(pairs)


def test_a_common_text_is_in_more_than_a_hundredth_of_the_rows_and_in_more_than_ten():
    keys = np.repeat(np.arange(5, dtype=np.uint64), (10, 11, 20, 21, 2000 - 62))
    assert common_keys(keys, 2000).tolist() == [3, 4]
    assert common_keys(keys[:62], 62).tolist() == [1, 2, 3]


# --- the negatives of a batch


def keys_of(run):
    """Returns the first batch of a run, with views that have its keys."""
    (batch,) = first_batches(run)
    keys = gathered_keys(Inputs(batch, "cpu"), World())
    return batch, Views({name: torch.zeros(len(batch.rows), 1) for name in batch.views}, batch.roles, keys=keys)


@pytest.mark.parametrize("positive", ["spans", "halves", "dropout"])
@pytest.mark.parametrize("spell", SPELLINGS)
def test_rows_with_equal_token_ids_and_their_parts_are_no_negatives(run_config, tmp_path, sample_rows, positive, spell):
    rows = [row for row in sample_rows if len(row.split()) > 12][:8]
    path = tmp_path / "twins.txt"
    path.write_text("\n".join([*rows, *map(spell, rows)]) + "\n", encoding="utf8")
    config = run_config.replace(corpus=path, positive=positive, batch_size=16, max_steps=1, dev=())
    batch, views = keys_of(prepare(config))
    assert batch.repeats or positive == "dropout"
    twins = (batch.rows[:, None] % 8) == (batch.rows % 8)
    for one, other in (("anchor", "anchor"), ("anchor", "positive"), ("positive", "anchor")):
        assert (views.equal(one, other).numpy() == twins).all()
    (kept,) = first_batches(prepare(config.replace(keep_duplicates=True)))
    assert kept.keys == {}


def test_rows_that_differ_beyond_the_maximum_length_are_different_if_parts_are_encoded(
    run_config, tmp_path, sample_rows
):
    words = " ".join(" ".join(sample_rows[:3]).split()[:40])
    path = tmp_path / "long.txt"
    path.write_text("".join(f"{words} {row}\n" for row in sample_rows[3:11]), encoding="utf8")
    config = run_config.replace(corpus=path, positive="spans", batch_size=8, max_steps=1, max_length=8, dev=())
    (batch,) = first_batches(prepare(config))
    assert len(set(batch.keys["sentences"].tolist())) == 8


def masked(anchors, positives, negatives):
    """Returns which texts of ``positives`` and ``negatives`` are no negatives of each anchor, as two matrices."""
    number = {text: place for place, text in enumerate(dict.fromkeys([*anchors, *positives, *negatives]))}
    columns = {"anchor": anchors, "positive": positives, "hard_negative": negatives}
    known = {name: torch.tensor([number[text] for text in texts]) for name, texts in columns.items()}
    roles = roles_by_name(columns)
    views = Views({name: torch.zeros(len(anchors), 1) for name in columns}, roles, keys=entry_keys(known, roles))
    return views.equal("anchor", "positive").tolist(), views.equal("anchor", "hard_negative").tolist()


def test_a_negative_that_is_a_positive_of_another_row_with_the_same_anchor_is_no_negative():
    of_positives, of_negatives = masked(["a", "a", "b"], ["p", "q", "r"], ["q", "p", "q"])
    assert of_positives == [[True, True, False], [True, True, False], [False, False, True]]
    assert of_negatives == [[True, True, True], [True, True, True], [False, False, False]]


def test_texts_are_joined_by_one_row_only_and_never_by_a_negative():
    # Row 1 shares a text with rows 0 and 2, which share none: "c" is a negative of row 0.
    of_positives, of_negatives = masked(["a", "a", "c"], ["p", "q", "q"], ["c", "x", "x"])
    assert of_positives == [[True, True, True], [True, True, True], [False, True, True]]
    assert of_negatives == [[False, False, False], [True, False, False], [True, False, False]]
    # Rows 0 and 1 have the same negative, which joins nothing.
    assert masked(["a", "b"], ["p", "q"], ["n", "n"]) == ([[True, False], [False, True]], [[False] * 2] * 2)


def test_mined_negatives_that_are_positives_elsewhere_stay_negatives(run_config, tmp_path):
    """Every negative is the positive of another row; over 95 % of them are negatives of each anchor, and are used."""
    texts = different(1200)
    rows = [(texts[row], texts[600 + row], texts[600 + (row + 7) % 600]) for row in range(600)]
    path = write_table(tmp_path / "mined.csv", rows, ("anchor", "positive", "negative"))
    run = prepare(run_config.replace(corpus=(), pairs=path, positive="labelled", batch_size=64, max_steps=1, dev=()))
    batch, views = keys_of(run)
    used = batch.masks.get("hard_negative", np.ones(64, dtype=bool))
    assert views.equal("anchor", "hard_negative").float().mean() < 0.05
    assert np.mean(~views.equal("anchor", "hard_negative").numpy() & used) > 0.9
    train, (usable,) = run.batches.order.rows, run.batches.positive.pairs.usable
    assert len(train) == 570
    assert 0.94 < usable[train].mean() < 1


def test_the_loss_of_two_rows_with_one_anchor_has_no_false_negatives():
    z = {name: torch.randn(2, 4, dtype=torch.float64) for name in ("anchor", "positive", "hard_negative")}
    z["anchor"][1], z["hard_negative"] = z["anchor"][0], z["positive"].flip(0)
    keys = entry_keys(
        {"anchor": torch.tensor([1, 1]), "positive": torch.tensor([2, 3]), "hard_negative": torch.tensor([3, 2])},
        roles_by_name(z),
    )
    assert float(contrastive_loss(z, keys=keys)) == 0
    assert float(contrastive_loss(z)) > math.log(2)


# --- rows that are held out


def corpus_of(columns):
    return [Corpus.from_texts(column) for column in columns]


def test_rows_that_differ_in_spelling_from_a_held_out_row_are_not_trained_on():
    texts = different(400)
    (corpus,) = corpus_of([[spell(text) for spell in SPELLINGS for text in texts]])
    split = hold_out(corpus, 0, True)
    keys = corpus.row_keys()
    assert len(split.held_out) == len(set(keys[split.held_out].tolist())) == 80
    assert not set(keys[split.held_out].tolist()) & set(keys[split.train].tolist())
    assert split.joined == 3 * 80
    assert len(split.train) + len(split.held_out) + split.joined == 1600


def test_rows_are_held_out_with_those_that_share_their_anchor_or_positive():
    texts = different(900)
    anchors = [*texts[:300], *texts[:300]]
    positives = texts[300:]
    positives[450] = positives[20].upper()
    pair = corpus_of([anchors, positives])
    split = hold_out(pair[0], 0, True, others=pair[1:])
    known = [{*each.row_keys()[split.held_out].tolist()} for each in pair]
    for column in pair:
        assert not {*column.row_keys()[split.train].tolist()} & (known[0] | known[1])
    assert len(split.held_out) == 30
    assert split.joined >= 30
    assert len(split.common) == 0


def test_an_answer_of_half_of_the_rows_joins_none_and_five_per_cent_are_held_out():
    texts = different(1000)
    pair = corpus_of([texts, ["yes" if row % 2 else texts[row][::-1] for row in range(1000)]])
    split = hold_out(pair[0], 0, True, others=pair[1:])
    assert (len(split.held_out), split.joined, len(split.train)) == (50, 0, 950)
    assert split.common.tolist() == row_keys(["YES "]).tolist()


def test_few_answers_of_many_rows_leave_four_fifths_to_train_on():
    """Each of 200 answers has 10 rows; if 5 % of the rows were held out, all rows would share an answer with one."""
    texts = different(2000)
    pair = corpus_of([texts, [f"answer {row % 200}" for row in range(2000)]])
    split = hold_out(pair[0], 0, True, others=pair[1:])
    assert 1600 <= len(split.train) < 1620
    answers = pair[1].row_keys()
    assert not set(answers[split.held_out].tolist()) & set(answers[split.train].tolist())
    assert len(set(answers[split.held_out].tolist())) >= 35


def test_a_text_of_many_rows_is_not_held_out():
    texts = different(500)
    (corpus,) = corpus_of([[*texts, *[texts[0]] * 500]])
    split = hold_out(corpus, 0, True)
    assert len(split.held_out) == 50
    assert 0 not in split.held_out
    assert {0, *range(500, 1000)} <= set(split.train.tolist())


def test_the_row_counts_name_the_texts_that_join_no_rows(run_config, tmp_path):
    rows = [(text, "yes") for text in different(200)]
    path = write_table(tmp_path / "yes.csv", rows, ("anchor", "positive"))
    run = prepare(run_config.replace(corpus=(), pairs=path, positive="labelled", dev=()))
    assert "1 text in more than 1 % of the rows, by which no rows are joined" in run.facts["corpus"]


@pytest.mark.parametrize("columns", [1, 3])
def test_texts_that_judge_pairs_are_trained_on_in_no_column(run_config, tmp_path, columns):
    """The negatives are positives of other rows, as mined ones are; those of held-out rows are masked."""
    texts = different(1200)
    rows = [
        (texts[row], texts[600 + row], *(texts[600 + (row + 1 + n) % 600].upper() for n in range(columns)))
        for row in range(600)
    ]
    names = ("anchor", "positive", *(f"negative_{n + 1}" for n in range(columns)))
    path = write_table(tmp_path / "mined.csv", rows, names)
    config = run_config.replace(corpus=(), pairs=path, positive="labelled", batch_size=64, max_steps=None, dev=())
    run = prepare(config)
    (evaluation,) = run.judge.evaluations
    judged = [set(row_keys(texts).tolist()) for texts in evaluation.columns]
    assert len(judged[1]) == 30
    trained = set()
    for number in range(run.batches.order.per_epoch):
        for block in run.batches[number].blocks.values():
            kept = np.ones(len(block.texts), dtype=bool) if block.mask is None else block.mask
            trained |= set(row_keys(block.texts)[kept].tolist())
    assert not trained & (judged[0] | judged[1])
    assert first_batches(run)[0].masks.keys() <= {f"hard_negative{end}" for end in ("", "_2", "_3")}
    # Published methods keep their negatives, and such texts do not judge.
    assert prepare(config.replace(keep_duplicates=True)).judge.evaluations == []


# --- texts that judge


def test_a_text_of_many_rows_does_not_judge_by_its_label(tmp_path):
    rows = [(text, "ab"[row % 2]) for row, text in enumerate(different(300))] + [("not available", "a")] * 20
    found, held = choose_labelled(*labelled_corpus(tmp_path / "t.csv", rows), [1.0])
    assert "not available" not in found.texts
    assert len(held) == len(found.texts) == 300


def test_halves_of_a_corpus_are_scored_once_for_each_text(tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("".join(f"{spell(text)}\n" for text in different(20) for spell in SPELLINGS[:2]), "utf8")
    assert len(SplitHalf(SplitHalfOptions(), str(path)).texts) == 20


# --- mined rows


def owners(texts, passage):
    return {normalised(text) for text in texts if normalised(passage) in normalised(text)}


def test_the_texts_of_a_mined_row_are_different_if_rows_of_the_corpus_are_repeated(glove):
    texts = different(40, 24)
    corpus = [spell(text) for text in texts for spell in SPELLINGS for _ in range(3)]
    queries = [*(" ".join(text.split()[:4]) for text in texts[:10]), *texts[10:14]]
    index = SearchIndex.build(Encoder(glove), corpus)
    for ranks in ((4, 9), (4, 40)):
        rows = QueryRows(200, ranks, words=30)(index, queries)
        assert len(rows) == 200
        for anchor, positive, negative in rows:
            assert not owners(texts, negative) & owners(texts, positive)
            assert not owners(texts, negative) & (owners(texts, anchor) if anchor in texts else set())
