"""Tests of training on labelled pairs and triples, and of models that keep their MLP head."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from commands import refuses
from cse import Encoder, train
from cse.cli import printing
from cse.data.pairs import open_pairs
from cse.encoder.prompts import TrainingPrompts
from cse.evaluation.base import read_pairs
from cse.evaluation.ranking import read_run
from cse.evaluation.retrieval import read_judgements
from cse.evaluation.sts import score_pairs
from cse.training.callbacks import by_sentence
from cse.training.setup import prepare
from cse.training.step.encode import Inputs, gathered_keys
from cse.training.step.ranks import World
from cse.views import Views
from runs import first_batches, records_of, weights
from sentence_models import agree


def table(folder, kind, rows, names=("sent0", "sent1", "hard_neg")):
    """Writes rows to a table in the format ``kind`` and returns its path."""
    path = folder / f"pairs.{kind}"
    frame = pd.DataFrame(rows, columns=names)
    if "jsonl" in kind:
        frame.to_json(path, orient="records", lines=True)
    elif kind == "parquet":
        frame.to_parquet(path)
    elif kind == "tsv":
        path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [names, *rows]), encoding="utf8")
    else:
        frame.to_csv(path, index=False, lineterminator="\r\n")
    return path


@pytest.fixture
def triples(sample_rows):
    return [tuple(sample_rows[i : i + 3]) for i in range(0, 300, 3)]


@pytest.fixture
def base(run_config):
    return run_config.replace(corpus=(), max_steps=3, log_every=1)


def test_final_sts_scores_of_a_run_equal_those_of_its_saved_model(base, triples, tmp_path):
    """The MLP head is used for both scores, because supervised runs keep it."""
    data = tmp_path / "stsb.test.tsv"
    lines = [f"{i % 6}\t{a}\t{b}" for i, (a, b, _) in enumerate(triples[:30])]
    data.write_text("\n".join(lines) + "\n", encoding="utf8")
    path = table(tmp_path, "csv", triples)
    result = train(base.replace(pairs=path, data=str(tmp_path), allow_partial=True))
    expected = score_pairs(Encoder(result.folder / "best"), read_pairs(data)).spearman
    assert result.sts == {"STS-B": pytest.approx(expected, abs=1e-6)}


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_every_table_format_is_read_and_rows_with_blank_cells_are_skipped(tmp_path, triples, base, kind, capsys):
    rows = [*triples[:50], ("an anchor", "", "a negative"), *triples[50:]]
    path = table(tmp_path, kind, rows)
    pairs = open_pairs([str(path)], [])
    complete = pairs.complete()
    assert complete.tolist() == [row for row in range(101) if row != 50]
    assert pairs.hard_negatives[0].take(complete) == [row[2] for row in triples]
    run = prepare(base.replace(pairs=path))
    assert "1 blank" in run.facts["corpus"]
    assert run.facts["columns"] == "anchor 'sent0', positive 'sent1', hard negative 'hard_neg'"
    batch = run.batches[0]
    for place, name in enumerate(("anchor", "positive", "hard_negative")):
        assert batch.blocks[name].texts == [rows[row][place] for row in batch.rows]
    printing.print_examples(by_sentence(run.examples))
    shown = capsys.readouterr().err
    assert all(printing.cut(text, ())[0] in shown for row in batch.rows[:3] for text in rows[row])


def test_columns_can_be_chosen_by_name_and_invalid_names_are_refused(tmp_path, triples, base):
    path = table(tmp_path, "csv", triples)
    run = prepare(base.replace(pairs=path, columns=("hard_neg", "sent0")))
    assert "hard_negative" not in run.batches[0].views
    assert run.batches[0].blocks["positive"].texts == [triples[row][0] for row in run.batches[0].rows]
    assert prepare(base.replace(pairs=path, loss="scd", columns=("sent0", "sent1"))).state.terms.keys() == {"scd"}
    wide = table(tmp_path, "tsv", [(*row, "more") for row in triples], names=("a", "b", "c", "d"))
    unnamed = r"no column has a name for the anchor \(anchor, query, question, \.\.\.\); .* --columns; .*: a, b, c, d"
    for values, message in (
        ({"columns": ("sent0", "sent1"), "hard_negative_weight": 2.0}, "needs a third column"),
        ({"loss": "scd"}, "--loss scd does not use the hard negatives of --pairs"),
        ({"columns": ("sent0", "other")}, "has no column 'other'"),
        ({"columns": ("sent0",)}, "must name two or more different columns"),
        ({"pairs": wide}, unnamed),
        ({"pairs": tmp_path / "pairs.txt"}, "is not a table"),
    ):
        refuses(message, prepare, base.replace(**{"pairs": path, **values}))


def test_column_names_determine_roles_and_id_columns_are_ignored(tmp_path):
    rows = [(str(227 + i), f"an answer {i}", f"a question {i}") for i in range(9)]
    for kind in ("csv", "jsonl", "parquet"):
        pairs = open_pairs([str(table(tmp_path, kind, rows, ("ID", "Answer", "question")))], [])
        assert (pairs.anchors.take([0]), pairs.positives.take([0])) == (["a question 0"], ["an answer 0"])
        assert not pairs.hard_negatives
        assert pairs.describe() == "anchor 'question', positive 'Answer'; unused: 'ID'"


# The names of the columns, the last cell of row i, and the error message if the columns are not named.
UNCLEAR = [
    ("sentence1|sentence2|label", "{1}", "column 'label' marks which rows are positive pairs; .* --where label=1"),
    ("sentence1|sentence2|score", "{1}", "select them with --min-score 4, or name .* --columns; .*: sentence1,"),
    ("sentence1|sentence2|year", "{1}", "column 'year' are numbers; name .* with --columns; .*: sentence1, sent"),
    ("question|query|answer", "{1}", "columns question and query may both be the anchor; .* --columns"),
    ("sentence1|negative|hard_neg", "{1}", "columns negative and hard_neg may both be the hard negative"),
    # A column of an unknown name has no role.
    ("q|a", "two {0}", "no column has a name for the anchor .*; rename the columns, or name .* --columns; .*: q, a"),
    ("instruction|input|answer", "three {0}", r"no column has a name for the anchor .* --columns; [^\n]*instruction"),
    ("question|reply", "two {0}", r"no column has a name for the positive .* --columns; [^\n]*question"),
    ("text|negative", "two {0}", r"no column has a name for the anchor .* --columns; [^\n]*text"),
    # Marks of any name.
    ("question|answer|ok", "{2}", "column 'ok' marks which rows are .* with --where ok=yes"),
    ("sentence1|sentence2|paraphrase", "{3}", "column 'paraphrase' marks which rows are .* with --where paraphrase=1"),
    # The first line holds a pair.
    ("A man is eating.|a meal", "two {0}", "no column has a name for .*; the first line names the columns: A man"),
]


@pytest.mark.parametrize(("names", "last", "message"), UNCLEAR, ids=range(len(UNCLEAR)))
def test_the_error_for_a_column_whose_role_is_unclear_suggests_an_option(tmp_path, names, last, message):
    names = tuple(names.split("|"))
    cells = (last.format(i, i % 5, ("no", "yes")[i % 3 > 0], int(i % 3 > 0)) for i in range(30))
    rows = [(*(f"one {i}", f"two {i}")[: len(names) - 1], cell) for i, cell in enumerate(cells)]
    path = str(table(tmp_path, "csv", rows, names))
    refuses(message, open_pairs, [path], [])
    named = open_pairs([path], names[:2])
    assert (named.positives.take([1]), named.left_out) == (["two 1"], 0)
    assert list(named.names.values()) == list(names[:2])
    if "marks" in message:
        assert open_pairs([path], [], where=message.split()[-1]).left_out in (10, 24)


@pytest.mark.parametrize("stem", ["negative_{}", "hard_negative_{}", "negative{}"])
def test_every_numbered_column_of_negatives_is_used(tmp_path, base, sample_rows, stem):
    rows = [tuple(sample_rows[i : i + 5]) for i in range(0, 200, 5)]
    names = ("anchor", "positive", *(stem.format(number) for number in (1, 2, 3)))
    path = table(tmp_path, "csv", rows, names)
    pairs = open_pairs([str(path)], [])
    roles = ("anchor", "positive", "hard negative", "hard negative 2", "hard negative 3")
    assert pairs.describe() == ", ".join(f"{role} '{name}'" for role, name in zip(roles, names, strict=True))
    assert [corpus.take([1])[0] for corpus in pairs.corpora] == list(rows[1])
    config = base.replace(pairs=path, hard_negative_weight=2.0)
    batch = prepare(config).batches[0]
    for place, name in enumerate(("hard_negative", "hard_negative_2", "hard_negative_3"), 2):
        assert batch.blocks[name].texts == [rows[row][place] for row in batch.rows]
        assert batch.roles[name] == "negative"
    logs = [records_of(train(config.replace(columns=each)).folder)[0] for each in ((), names, names[:3])]
    whole, named, fewer = ([record["loss"] for record in log] for log in logs)
    assert whole == named
    assert all(less < more for less, more in zip(fewer, whole, strict=True))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_pairs_are_selected_by_label_or_score(tmp_path, kind, base):
    rows = [(f"one {i}", f"two {i}" if i != 4 else "", i % 2, i / 10) for i in range(60)]
    path = table(tmp_path, kind, rows, ("sentence_A", "sentence_B", "Label", "score"))
    pairs = open_pairs([str(path)], [], where="Label=1")
    assert pairs.complete().tolist() == list(range(1, 60, 2))
    assert open_pairs([str(path)], [], where="score=0.50").complete().tolist() == [5]
    assert open_pairs([str(path)], [], where="Label=1", min_score=5).complete().tolist() == [51, 53, 55, 57, 59]
    run = prepare(base.replace(pairs=path, where="Label=0"))
    assert "30 of 60 rows chosen" in run.facts["columns"]
    assert ", 1 blank" in run.facts["corpus"]
    assert all(row % 2 == 0 for row in run.batches.order.rows)
    result = train(base.replace(pairs=path, where="Label=0", min_score=1.0, max_steps=1))
    assert 'where = "Label=0"' in (result.folder / "config.toml").read_text(encoding="utf8")
    for values, message in (
        ({"where": "Label=2"}, "--where Label=2: no row has this value; the first distinct values are 0, 1"),
        ({"where": "label"}, "must be COLUMN=VALUE"),
        ({"where": "other=1"}, "has no column 'other'; its columns are: sentence_A"),
        ({"min_score": 9.0}, "--min-score 9: no row"),
    ):
        refuses(message, open_pairs, [str(path)], [], **values)


@pytest.mark.parametrize(
    ("values", "where", "rows", "note"),
    [
        ("1.10|1.1|1.2", "1.1", [1], "1 more is equal as a number"),
        ("1.10|1.1|1.2", "1.10", [0], "1 more is equal as a number"),
        ("1_1|11|12", "11", [1], ""),
        ("1_1|11.0| 11e0", "11", [1, 2], ""),
        ("9007199254740993|9007199254740992|1", "9007199254740993", [0], ""),
        ("Yes|yes|YES", "yes", [1], "2 more are equal but for case"),
        ("Yes|no|YES", "yes", [0, 2], ""),
    ],
)
def test_where_compares_texts_before_numbers(tmp_path, values, where, rows, note):
    path = table(tmp_path, "csv", [("a", "b", value) for value in values.split("|")], ("anchor", "positive", "code"))
    pairs = open_pairs([str(path)], [], f"code={where}")
    assert pairs.chosen.nonzero()[0].tolist() == rows
    assert f"{len(rows)} of 3 rows chosen{f' ({note})' if note else ''}" in pairs.describe()


def test_training_on_triples_works_with_every_loss_and_with_una(tmp_path, triples, base):
    for values in (
        {"una": True},
        {"una": {"every": 1, "use_as": "hard-negatives"}, "negatives": ("una",), "loss": "focal"},
        {"loss": "mixed", "hard_negative_weight": 2.0},
        {"chunk_size": 3, "loss_terms": ("mlm",)},
    ):
        records, _ = records_of(train(base.replace(pairs=table(tmp_path, "csv", triples), **values)).folder)
        assert len(records) == 3
        assert all(np.isfinite(record["loss"]) and "cos_hard" in record for record in records)


@pytest.mark.parametrize("kind", ["tiny_bert", "tiny_roberta"])
def test_a_kept_mlp_head_is_part_of_the_saved_model(tmp_path, triples, base, kind, request):
    config = base.replace(pairs=table(tmp_path, "csv", triples), model=request.getfixturevalue(kind))
    assert prepare(config).settings.model.keep_head
    folder = train(config).folder / "best"
    encoder, texts = Encoder(folder), [row[0] for row in triples[:20]]
    assert encoder.pooling == "cls: the trained pooler"
    vectors = agree(folder, texts=texts)
    assert np.abs(vectors).max() < 1  # the head ends in tanh
    if kind == "tiny_bert":
        limits = {"truncation": True, "max_length": encoder.max_seq_length}
        tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt", **limits)
        with torch.no_grad():
            pooled = AutoModel.from_pretrained(folder).eval()(**tokens).pooler_output
        assert np.allclose(pooled.numpy(), vectors, atol=1e-5)
    # A run that starts from the saved model loads its head.
    again = prepare(base.replace(pairs=config.pairs, model=folder, pooler="cls"))
    assert torch.equal(again.state.encoder.head.linear.weight, encoder[2].linear.weight)
    assert not (train(config.replace(keep_head=False)).folder / "best" / "2_Dense").exists()


def test_when_a_run_is_evaluated_does_not_change_its_dropout(tmp_path, triples, base, scored_pairs):
    config = base.replace(pairs=table(tmp_path, "csv", triples), max_steps=4, dev=scored_pairs)
    assert prepare(config).settings.model.keep_head
    first, *others = (train(config.replace(eval_every=every, name=f"every-{every}")).folder for every in (0, 1, 3))
    for other in others:
        assert all(torch.equal(value, weights(other)[name]) for name, value in weights(first).items())


# What a batch of eight rows may hold: each function returns the positive and the hard negative of row i.
CASES = {
    "a mined negative is another row's positive": lambda i: (f"positive {i}", f"positive {(i + 1) % 8}"),
    "a negative is its own positive": lambda i: (f"positive {i}", f"Positive  {i}"),
    "a negative is its own anchor": lambda i: (f"positive {i}", f"ANCHOR number {i} "),
    "a chain": lambda i: (f"anchor number {(i + 1) % 8}", f"negative {i}"),
    "texts that are equal after truncation": lambda i: (f"{i // 2} " + "word " * 30 + str(i), f"negative {i}"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("prompt", [None, "query: "])
def test_equal_token_ids_are_not_negatives_whatever_their_columns(tmp_path, base, case, prompt):
    rows = [(f"anchor number {i}", *CASES[case](i)) for i in range(8)]
    config = base.replace(pairs=table(tmp_path, "csv", rows), max_steps=1, max_length=12, prompt=prompt)
    run = prepare(config)
    batch, equal = compared(run)

    def ids(row, places):
        cut = {"truncation": True, "max_length": 12}
        return {tuple(run.state.encoder.tokenizer(rows[row][place], **cut)["input_ids"]) for place in places}

    def is_of_a_related_row(i, text):
        return any(ids(i, (0, 1)) & ids(row, (0, 1)) and text <= ids(row, (0, 1)) for row in batch.rows)

    found = 0
    for one, (place, other) in product(("anchor", "positive"), enumerate(("anchor", "positive", "hard_negative"))):
        expected = [[is_of_a_related_row(i, ids(j, (place,))) for j in batch.rows] for i in batch.rows]
        assert (equal(one, other) == np.array(expected)).all()
        found += np.sum(expected) - 8 * (other != "hard_negative")
    assert found
    for keep in (False, True):
        (record,) = records_of(train(config.replace(keep_duplicates=keep)).folder)[0]
        assert record.get("duplicates") == (None if keep else 8)


def compared(run):
    """Returns the first batch, and a function that compares two of its views as ``Views.equal`` does."""
    (batch,) = first_batches(run)
    keys = gathered_keys(Inputs(batch, "cpu"), World())
    views = Views({name: torch.zeros(len(batch.rows), 1) for name in batch.views}, batch.roles, keys=keys)
    assert batch.repeats
    return batch, lambda one, other: views.equal(one, other).numpy()


@pytest.mark.parametrize("value", ["9007199254740993", "1_1", "nan", "1e999"])
def test_values_that_float64_does_not_hold_are_no_numbers(tmp_path, value):
    path = tmp_path / "pairs.csv"
    path.write_text(f"anchor,positive,score\na,b,1\na,b,{value}\n", encoding="utf8")
    message = f"no row has this value; the first distinct values are 1, {value}"
    refuses(message, open_pairs, [str(path)], [], "score=9007199254740992")
    refuses(f"row 2 of column score is '{value}', not a number", open_pairs, [str(path)], [], min_score=1)
    path.write_text(f"1,one,two\n2,three,four\n{value},five,six\n", encoding="utf8")
    refuses(f"line 3: the score must be a finite number, got '{value}'", read_pairs, path)
    for line, read in ((f"q 0 d {value}", read_judgements), (f"q Q0 d 1 {value} name", read_run)):
        path.write_text(f"{line.replace(value, '1')}\n{line.replace(' d ', ' e ')}\n", encoding="utf8")
        refuses("line 2", read, path)


def test_prompts_by_column_do_not_hide_equal_texts(tmp_path, base):
    """The anchors have another prompt than the negatives, which are the anchors."""
    rows = [(f"anchor number {i}", f"positive {i}", f"anchor number {i}") for i in range(8)]
    run = prepare(base.replace(pairs=table(tmp_path, "csv", rows), max_steps=1))
    for anchor, document in (("query: ", "passage of a text: "), ("query: ", ""), ("", "passage: ")):
        run.batches.prompts = TrainingPrompts(anchor, document).counted(run.state.encoder)
        _, equal = compared(run)
        assert (equal("anchor", "hard_negative") == np.eye(8, dtype=bool)).all()
