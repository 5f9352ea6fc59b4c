"""Tests of the loss, the negatives and the evaluator that cse provides for the trainer of sentence-transformers."""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.losses.merged_forward import embed_columns
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from commands import refuses
from cse import Encoder, TfidfIndex
from cse.evaluation.geometry import score_halves
from cse.sentence_transformers import HalvesEvaluator, InfoNCELoss, NegativesCollator, add_negatives, number_rows
from cse.sentence_transformers.loss import check_equal_rows
from cse.sentence_transformers.negatives import column_keys
from cse.training.callbacks import Callback
from cse.training.loop import Trainer
from cse.training.setup import prepare
from cse.training.step.ranks import World
from ranks import run_ranks

LENGTH = 24


def in_order(dataset, batch_size, drop_last, **_):
    """A batch sampler that keeps the order of the rows."""
    return BatchSampler(SequentialSampler(dataset), batch_size, drop_last)


def load(folder, double=True):
    """Loads a transformer from a folder as a `SentenceTransformer` with mean pooling, by default in float64."""
    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = LENGTH
    return model.double() if double else model


def trainer_of(model, dataset, loss, folder, collator=None, evaluated=None, **arguments):
    """Returns a trainer of sentence-transformers, by default for one epoch of the rows in their order."""
    values = {
        "per_device_train_batch_size": 8, "num_train_epochs": 1, "learning_rate": 1e-3, "lr_scheduler_type": "linear",
        "weight_decay": 0.01, "batch_sampler": in_order, "report_to": [], "save_strategy": "no", "use_cpu": True,
        "disable_tqdm": True, **arguments,
    }  # fmt: skip
    return SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(output_dir=str(folder), **values),
        train_dataset=dataset,
        eval_dataset=evaluated,
        loss=loss,
        data_collator=collator,
        callbacks=None if collator is None else [collator.callback],
    )


def fit(*given, **arguments):
    """Trains, and returns the trainer."""
    trainer = trainer_of(*given, **arguments)
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def without_dropout(tmp_path_factory, tiny_bert):
    """The folder of a copy of ``tiny_bert`` whose dropout rates are 0."""
    folder = shutil.copytree(tiny_bert, tmp_path_factory.mktemp("nodropout") / "model")
    config = json.loads((folder / "config.json").read_text(encoding="utf8"))
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf8")
    return folder


@pytest.fixture(scope="module")
def triples(sample_rows):
    """48 rows of anchors, positives (the anchor without its last word) and negatives (another sentence)."""
    texts = [row for row in sample_rows if 8 <= len(row.split()) <= 20][:48]
    positives = [" ".join(text.split()[:-1]) for text in texts]
    return Dataset.from_dict({"anchor": texts, "positive": positives, "negative": [*texts[7:], *texts[:7]]})


def features_of(model, dataset):
    return [model.preprocess(list(dataset[name])) for name in dataset.column_names]


def gradients(model, loss, features):
    """Returns the value and the gradients of a loss."""
    model.zero_grad()
    value = loss([dict(each) for each in features], None)
    value.backward()
    return float(value.detach()), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(one, two, tolerance):
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=0, atol=tolerance, msg=name)


UNA = {"beta": 0.4, "radius": 300}
COLUMNS = {"use_as": "hard-negatives", "every": 1, **UNA}
# Name: (settings of cse train, arguments of InfoNCELoss, arguments of NegativesCollator or None for no collator).
RUNS = {
    "standard": ({}, {}, None),
    "mixed": ({"loss": "mixed", "objective": "nt-xent"}, {"mixed": "paper", "objective": "nt-xent"}, {"index": None}),
    "release": ({"loss": "mixed", "mix_variant": "release"}, {"mixed": "release"}, None),
    "negatives": ({"loss": "mixed", "negatives": ("una",), "una": COLUMNS}, {"mixed": "paper"}, UNA),
    "pairs": (
        {"loss": "focal", "mixed_negatives": True, "negatives": ("una",), "una": {"every": 1, **UNA}},
        {"objective": "nt-xent", "logits": "focal", "mixed": "paper", "negatives_as": "pairs"},
        UNA,
    ),
    "weighted": ({"hard_negative_weight": 2.0}, {"hard_negative_weight": 2.0}, None),
}


@pytest.mark.parametrize("name", RUNS)
def test_the_trainer_of_sentence_transformers_gives_the_weights_of_cse_train(
    run_config, without_dropout, triples, tmp_path, name
):
    """sentence-transformers and cse train for six steps on the same batches, in float64 and without dropout."""
    settings, options, drawn = RUNS[name]
    if name == "weighted":
        # The negatives of ``triples`` are anchors of other rows; cse train leaves out those of held-out rows.
        reversed_texts = [" ".join(reversed(text.split())) for text in triples["anchor"]]
        triples = triples.remove_columns("negative").add_column("negative", reversed_texts)
        triples.to_csv(tmp_path / "triples.csv")
        settings = {**settings, "corpus": (), "pairs": (tmp_path / "triples.csv",)}
    settings = {**settings, "max_length": LENGTH, "max_steps": 6, "temperature": 0.05, "lr_scheduler": "linear"}
    settings |= {"weight_decay": 0.01, "max_grad_norm": 1.0, "eval_every": 0, "model": without_dropout, "pooler": "avg"}
    run = prepare(config := run_config.replace(**settings))
    for module in run.state.modules().values():
        module.double()
    before = {key: value.clone() for key, value in run.state.encoder.backbone.state_dict().items()}
    batches = [run.batches[number] for number in range(6)]
    Trainer(run, World(), Callback()).run()
    ours = run.state.encoder.backbone.state_dict()

    model = load(without_dropout)
    columns = {}
    for block, column in (("anchor", "anchor"), ("positive", "positive"), ("hard_negative", "negative")):
        if block in batches[0].blocks:
            columns[column] = [text for batch in batches for text in batch.blocks[block].texts]
    columns.setdefault("positive", columns["anchor"])  # unsupervised SimCSE: a positive is the text of its anchor
    collator = None
    if drawn is not None:
        columns["row"] = np.concatenate([batch.rows for batch in batches]).tolist()
        collator = NegativesCollator(model.preprocess, **{"index": TfidfIndex.open(config.tfidf), **drawn})
    trainer = fit(model, Dataset.from_dict(columns), InfoNCELoss(model, **options), tmp_path, collator)
    assert trainer.state.global_step == 6
    assert_same(ours, model[0].auto_model.state_dict(), 1e-6)
    assert max(float((value - before[key]).abs().max()) for key, value in ours.items()) > 1e-3


# Columns in which texts are equal, whatever their case and white space.
EQUAL = {
    "a negative is its own anchor, its own positive, or another row's positive": {
        "anchor": ["the first sentence", "another one", "and a third one", "c"],
        "positive": ["a", "b", "c", "d"],
        "negative": ["The First  sentence", "b", "a", "x"],
    },
    "two anchors are equal": {
        "anchor": ["the first sentence", "another one", "the first sentence", "and a third one"],
        "positive": ["a", "b", "c", "d"],
        "negative": ["x", "another one", "y", "d"],
    },
    "the negative of a row is the positive of a row with the same anchor": {
        "anchor": ["a question", "A  question", "another one", "another one"],
        "positive": ["first", "second", "third", "fourth"],
        "negative": ["second", "First", "fourth", "third"],
    },
    "two columns of negatives": {
        "anchor": ["the first sentence", "another one", "and a third one"],
        "positive": ["a", "b", "c"],
        "negative": ["x", "y", "b"],
        "more": ["x y", "and A third one", "z"],
    },
}


def loss_of_loops(columns, vectors, both, weight):
    """The loss of InfoNCE, or with ``both`` NT-Xent, without false negatives; ``weight`` is that of own negatives."""
    texts = [[" ".join(text.lower().split()) for text in column] for column in columns.values()]
    rows = range(len(texts[0]))
    known = [{texts[0][row], texts[1][row]} for row in rows]
    related = [set().union(*(each for each in known if each & known[row])) for row in rows]
    used = [(view, row) for view in range(2, len(texts)) for row in rows if texts[view][row] not in known[row]]
    losses = []
    for view in (0, 1) if both else (0,):
        for i in rows:
            terms = [float(vectors[view][i] @ vectors[1 - view][i]) / 0.05]
            for v, j in (*((v, j) for v in ((0, 1) if both else (1,)) for j in rows), *used):
                if texts[v][j] not in related[i]:
                    terms.append(float(vectors[view][i] @ vectors[v][j]) / 0.05)
                    terms[-1] += np.log(weight) if v > 1 and i == j else 0
            losses.append(np.logaddexp.reduce(terms) - terms[0])
    return np.mean(losses)


@pytest.mark.parametrize("case", EQUAL)
@pytest.mark.parametrize("prompts", [{}, {"anchor": "query: ", "positive": "passage: "}, {"negative": "passage: "}])
@pytest.mark.parametrize(("objective", "weight"), [("infonce", 1.0), ("nt-xent", 1.0), ("infonce", 3.0)])
def test_the_loss_equals_loops_that_leave_out_equal_texts(tiny_bert, prompts, objective, weight, case):
    model, columns = load(tiny_bert).eval(), EQUAL[case]
    features = [model.preprocess(texts, prompt=prompts.get(name)) for name, texts in columns.items()]
    with torch.no_grad():
        value, kept = (
            float(InfoNCELoss(model, objective, keep_duplicates=keep, hard_negative_weight=weight)(
                [dict(each) for each in features], None))
            for keep in (False, True)
        )  # fmt: skip
        z = [torch.nn.functional.normalize(model(dict(each))["sentence_embedding"], dim=-1) for each in features]
        theirs = float(MultipleNegativesRankingLoss(model)([dict(each) for each in features], None))
    expected = loss_of_loops(columns, z, objective == "nt-xent", weight)
    assert value == pytest.approx(expected, rel=1e-9) != pytest.approx(kept, rel=1e-6)
    assert (kept == pytest.approx(theirs, rel=1e-12)) == (objective == "infonce" and weight == 1)


def test_the_default_loss_equals_multiple_negatives_ranking_loss(tiny_bert, triples):
    model = load(tiny_bert).eval()
    pairs = triples.remove_columns("negative")
    reversed_texts = [" ".join(reversed(text.split())) for text in pairs["anchor"]]  # so that no text occurs twice
    for dataset in (pairs, pairs.add_column("negative", reversed_texts)):
        features = features_of(model, dataset)
        (ours, one), (theirs, two) = (
            gradients(model, loss(model), features) for loss in (InfoNCELoss, MultipleNegativesRankingLoss)
        )
        assert ours == pytest.approx(theirs, rel=1e-12)
        assert_same(one, two, 1e-12)


CACHED = {
    "focal nt-xent": {"objective": "nt-xent", "logits": "focal"},
    "release": {"mixed": "release"},
    "weighted": {"hard_negative_weight": 3.0},
    "pairs": {"objective": "nt-xent", "negatives_as": "pairs", "mixed": "paper"},
}


def test_cached_gradients_repeat_the_dropout_masks(tiny_bert, triples):
    model = load(tiny_bert).train()
    (anchors, *_), found = features_of(model, triples.select(range(8))), []
    for cached in (False, True):
        torch.manual_seed(3)
        loss = InfoNCELoss(model, logits="focal", cached=cached, mini_batch_size=8)
        found.append(gradients(model, loss, [anchors, anchors]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    assert_same(found[0][1], found[1][1], 1e-12)


@pytest.mark.parametrize("name", CACHED)
@pytest.mark.parametrize("matryoshka", [False, True])
def test_cached_gradients_equal_uncached_ones(tiny_bert, triples, name, matryoshka):
    model = load(tiny_bert).eval()
    features = features_of(model, triples.select(range(13)))

    def loss_of(**options):
        inner = InfoNCELoss(model, **CACHED[name], **options)
        return MatryoshkaLoss(model, inner, matryoshka_dims=[32, 8]) if matryoshka else inner

    value, one = gradients(model, loss_of(), features)
    for size in ({"mini_batch_size": 4}, {"mini_batch_num_tokens": 60}):
        loss = loss_of(cached=True, **size)
        cached, two = gradients(model, loss, features)
        assert cached == pytest.approx(value, rel=1e-12)
        assert_same(one, two, 1e-12)
    with torch.no_grad():
        assert float(loss(features, None)) == pytest.approx(value, rel=1e-12)


def test_negatives_used_as_pairs_are_encoded_twice(tiny_bert, triples):
    """The reference is NT-Xent over four views; two encodings of a negative, with different dropout, form a pair."""
    model = load(tiny_bert).train()
    features = features_of(model, triples.select(range(5)))
    torch.manual_seed(1)
    value, _ = gradients(model, InfoNCELoss(model, objective="nt-xent", negatives_as="pairs"), features)
    torch.manual_seed(1)
    with torch.no_grad():
        z = [model(dict(features[0]))["sentence_embedding"]]
        z += embed_columns(model, [dict(each) for each in (*features[1:], features[2])], separate_first=False)
    z = torch.nn.functional.normalize(torch.stack(z), dim=-1)
    assert not torch.equal(z[2], z[3])
    total = 0.0
    for view, twin in ((0, 1), (1, 0), (2, 3), (3, 2)):
        for row in range(5):
            scores = (z.reshape(20, -1) @ z[view, row]) / 0.05
            scores[view * 5 + row] = -torch.inf
            total -= float(scores[twin * 5 + row] - scores.logsumexp(0))
    assert value == pytest.approx(total / 20, rel=1e-10)


def test_the_loss_accepts_inputs_that_are_not_padded_tokens(sample_rows, tiny_bert):
    """The inputs of a StaticEmbedding are concatenated token ids with offsets."""
    torch.manual_seed(0)
    tokenizer = load(tiny_bert).tokenizer.backend_tokenizer
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu")
    features = [model.preprocess(sample_rows[start : start + 5]) for start in (0, 10)]
    loss = InfoNCELoss(model, "nt-xent", mixed="paper")
    value = loss([dict(each) for each in features], None)
    value.backward()
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    with torch.no_grad():
        assert float(value.detach()) == float(loss(features, None))
        ours, theirs = InfoNCELoss(model)(features, None), MultipleNegativesRankingLoss(model)(features, None)
        assert float(ours) == pytest.approx(float(theirs), rel=1e-5)
    refuses("StaticEmbedding", InfoNCELoss, model, cached=True)


def test_the_error_for_a_missing_package_names_the_extra():
    code = "import sys; sys.modules['{0}'] = None; import cse.sentence_transformers"
    for name in ("sentence_transformers", "datasets"):
        done = subprocess.run([sys.executable, "-c", code.format(name)], capture_output=True, text=True, check=False)
        assert "pip install 'cse[sentence-transformers]'" in done.stderr.splitlines()[-1]


def test_mixing_partners_depend_on_token_ids_and_seed_but_not_on_padding(tiny_bert, triples):
    """Without row numbers, partners are drawn from the seed and a hash of the anchor's token ids (``token_keys``)."""
    model = load(tiny_bert)
    key = partial(column_keys, tokenizer=model.tokenizer)
    one = model.preprocess(triples["anchor"][:6])
    two = model.preprocess([*triples["anchor"][:6], "word " * 60])
    assert one["input_ids"].shape != two["input_ids"].shape
    assert torch.equal(key(one), key(two)[:6])
    model.tokenizer.padding_side = "left"
    left = model.preprocess(triples["anchor"][:6])
    assert torch.equal(key(one), key(left))
    assert len(set(key(two).tolist())) == 7
    loss = InfoNCELoss(model, mixed="paper", seed=1)
    other = InfoNCELoss(model, mixed="paper", seed=2)
    features = features_of(model.eval(), triples)[:2]
    with torch.no_grad():
        values = [float(each(features, None)) for each in (loss, loss, other)]
    assert values[0] == values[1] != values[2]


def test_the_loss_is_computed_in_float32_under_autocast(tiny_bert, triples):
    model = load(tiny_bert, double=False).eval()
    features = features_of(model, triples)[:2]
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        value = InfoNCELoss(model, temperature=0.01)(features, None)
        z = [model(dict(each))["sentence_embedding"].float() for each in features]
    assert value.dtype == torch.float32
    z = [torch.nn.functional.normalize(each, dim=-1) for each in z]
    expected = torch.nn.functional.cross_entropy(z[0] @ z[1].T / 0.01, torch.arange(len(z[0])))
    assert float(value) == pytest.approx(float(expected), rel=1e-5)


def test_the_model_card_names_parameters_and_papers(tiny_bert):
    model = load(tiny_bert, double=False)
    loss, cached = InfoNCELoss(model, "nt-xent", "focal", "paper", temperature=0.07), InfoNCELoss(model, cached=True)
    config = loss.get_config_dict()
    assert (config["objective"], config["logits"], config["mixed"]) == ("nt-xent", "focal", "paper")
    assert (config["temperature"], config["cached"]) == (0.07, False)
    assert "mini_batch_size" in cached.get_config_dict().keys() - config.keys()
    assert all(key in loss.citation for key in ("gao2021simcse", "hou2023focal", "zhang2022mixcse"))
    assert "gao2021scaling" in cached.citation


REFUSED_OPTIONS = [
    ({"objective": "all"}, "objective: 'all' is unknown"),
    ({"logits": "focl"}, "did you mean focal"),
    ({"mixed": "published"}, "mixed: 'published'"),
    ({"negatives_as": "columns"}, "negatives_as"),
    ({"temperature": 0}, "temperature must be >= 0.0001, got 0"),
    ({"hard_negative_weight": -1.0}, "hard_negative_weight"),
    ({"mix_lambda": 1.5}, "mix_lambda"),
    ({"negatives_as": "pairs"}, 'needs objective="nt-xent"'),
]


def test_invalid_options_and_missing_columns_of_the_loss_are_refused(tiny_bert, triples):
    for options, message in REFUSED_OPTIONS:
        refuses(message, InfoNCELoss, torch.nn.Identity(), **options)
    model = load(tiny_bert)
    features = features_of(model, triples)
    refuses("anchor and positive", InfoNCELoss(model), features[:1], None)
    weighted = InfoNCELoss(model, hard_negative_weight=2.0)
    refuses("needs a column of hard negatives", weighted, features[:2], None, error=ValueError)


@pytest.mark.parametrize("surface", [None, "plain"])
def test_negatives_depend_on_row_numbers_and_not_on_the_order_of_rows(sample_rows, sample_index, surface):
    texts = ["Of the, and.", "zzz", "...", *sample_rows[:60]]
    dataset = number_rows(Dataset.from_dict({"anchor": texts}))
    options = {"seed": 5, "epoch": 2, "beta": 0.3, "surface": surface}
    found, unchanged = add_negatives(dataset, sample_index, "anchor", copies=2, row_column="row", **options)
    assert found.column_names == ["anchor", "row", "negative_1", "negative_2"]
    for copy in (0, 1):
        expected, report = sample_index.augment_report(texts, copy=copy, **options)
        assert found[f"negative_{copy + 1}"][:] == expected
        if surface is None:
            assert unchanged[:, copy].sum() == report.unchanged > 0
    if surface is None:
        assert unchanged[2].all()  # a text without words
        assert not unchanged[3:].any()
    for size in (7, 1000):
        order = np.random.default_rng(0).permutation(len(texts))
        again, same = add_negatives(
            dataset.select(order), sample_index, "anchor", 2, row_column="row", batch_size=size, **options
        )
        assert again["negative_2"][:] == [found["negative_2"][int(row)] for row in order]
        assert (same == unchanged[order]).all()
    one, _ = add_negatives(dataset, sample_index, "anchor", name="hard", **options)
    assert one["hard"][:] == found["negative_1"][:]  # without ``row_column``, row numbers are positions


def test_the_collator_draws_new_negatives_in_every_epoch(tiny_bert, sample_rows, sample_index, indexed):
    model = load(tiny_bert)
    texts = sample_rows[:12]
    dataset = number_rows(Dataset.from_dict({"anchor": texts, "positive": texts, "label": [0.0] * 12}))
    collator = NegativesCollator(model.preprocess, indexed / "tfidf", "anchor", 2, seed=3)
    rows = [dataset[row] for row in (4, 9, 1)]
    refuses(r"callbacks=\[collator.callback\]", collator, rows)
    drawn = []
    for epoch in (0, 1):
        collator.epoch = epoch
        batch = collator(rows)
        columns = [key.removesuffix("_input_ids") for key in batch if key.endswith("_input_ids")]
        assert columns == ["anchor", "positive", "negative_1", "negative_2"]
        assert batch["anchor_cse_row"].tolist() == [4, 9, 1]
        assert batch["anchor_cse_epoch"].tolist() == [epoch] * 3
        assert not any(key.startswith("row") for key in batch)
        assert batch["label"].tolist() == [0.0] * 3
        table, _ = add_negatives(dataset, sample_index, "anchor", 2, row_column="row", seed=3, epoch=epoch)
        for name in ("negative_1", "negative_2"):
            expected = model.preprocess([table[row][name] for row in (4, 9, 1)])
            assert torch.equal(batch[f"{name}_input_ids"], expected["input_ids"])
        drawn.append(table["negative_1"][:])
    assert drawn[0] != drawn[1]
    without = collator([{"anchor": text, "positive": text} for text in texts])  # no row numbers, as in evaluation
    assert [key for key in without if key.endswith("_input_ids")] == ["anchor_input_ids", "positive_input_ids"]


class Recording(NegativesCollator):
    """A collator that records the epoch and the row numbers of each call."""

    def __call__(self, features):
        self.seen = [*getattr(self, "seen", []), (self.epoch, [each["row"] for each in features])]
        return super().__call__(features)


def test_a_resumed_trainer_continues_with_the_same_epochs_and_rows(tiny_bert, sample_rows, sample_index, tmp_path):
    texts = sample_rows[:16]
    dataset = number_rows(Dataset.from_dict({"anchor": texts, "positive": texts}))
    values = {"num_train_epochs": 3, "batch_sampler": "batch_sampler", "seed": 1, "prompts": {"anchor": "query: "}}

    def run(**more):
        model = load(tiny_bert, double=False)
        loss, collator = InfoNCELoss(model, mixed="paper"), Recording(model.preprocess, sample_index)
        return trainer_of(model, dataset, loss, tmp_path, collator, **values, **more), collator

    trainer, whole = run(save_strategy="steps", save_steps=3)
    trainer.train()
    assert [epoch for epoch, _ in whole.seen] == [0, 0, 1, 1, 2, 2]
    assert whole.prompts == {"anchor": "query: "}
    whole.callback.on_init_end(SimpleNamespace(prompts={"anchor": "other: "}), None, None)  # of a second trainer
    assert whole.prompts == {"anchor": "other: "}
    trainer, rest = run(save_strategy="no")
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert rest.seen[-3:] == whole.seen[-3:]


def test_invalid_arguments_for_negatives_are_refused(sample_rows, sample_index):
    dataset = Dataset.from_dict({"anchor": sample_rows[:3]})
    refuses("column anchor: the dataset already", add_negatives, dataset, sample_index, "anchor", name="anchor")
    refuses("copies", add_negatives, dataset, sample_index, "anchor", 0)
    refuses("column text: the dataset has no such column, only anchor", add_negatives, dataset, sample_index, "text")
    refuses("no TF-IDF index there", add_negatives, dataset, "nowhere", "anchor")


def test_negatives_are_not_used_as_positives_of_a_dataset_of_one_column(tiny_bert, sample_rows, sample_index, tmp_path):
    model = load(tiny_bert, double=False)
    dataset = number_rows(Dataset.from_dict({"anchor": sample_rows[:16]}))
    collator = NegativesCollator(model.preprocess, sample_index, "anchor")
    message = "has only one column of texts, so that the loss would use a negative"
    refuses(message, fit, model, dataset, InfoNCELoss(model), tmp_path, collator)
    collator.epoch = 0
    refuses("has only one column", collator, [{"anchor": "A sentence.", "row": 0, "label": 1}])
    with pytest.warns(UserWarning, match="has only one column"):
        add_negatives(dataset, sample_index, "anchor", row_column="row")


def test_the_evaluator_gives_the_same_scores_as_cse(tiny_bert, sample_rows, tmp_path):
    model = load(tiny_bert, double=False)
    model.max_seq_length = 64
    sentences = [row for row in sample_rows if len(row.split()) >= 8][:40]
    evaluator = HalvesEvaluator(["too short", sentences[0], *sentences], name="dev", limit=40)
    assert evaluator.sentences == sentences
    found = evaluator(model, str(tmp_path), epoch=1, steps=2)
    expected = score_halves(Encoder(tiny_bert, device="cpu"), sentences).to_dict()
    assert found == pytest.approx({f"dev_{key}": value for key, value in expected.items()}, abs=1e-5)
    assert evaluator.primary_metric == "dev_mrr"
    evaluator(model, str(tmp_path), epoch=2, steps=4)
    lines = (tmp_path / "halves_evaluation_dev_results.csv").read_text(encoding="utf8").splitlines()
    assert lines[0].startswith("epoch,steps,mrr,")
    assert [line.split(",")[1] for line in lines[1:]] == ["2", "4"]
    refuses("at least two different sentences of 8 words", HalvesEvaluator, ["short", *[sentences[0]] * 3])


def gathered_weights_of_a_rank():
    given, out = sys.argv[1:]
    found = gathered_weights(given, int(os.environ["WORLD_SIZE"]))
    if os.environ["RANK"] == "0":
        torch.save(found, out)


def gathered_weights(given, processes):
    """Trains a model per case, for three steps of eight rows split among the processes; returns the weights by case."""
    values = json.loads(Path(given).read_text(encoding="utf8"))
    found = {}
    for name, options in values["cases"].items():
        model = load(values["model"])
        loss = InfoNCELoss(model, gather_across_devices=True, **options)
        collator = NegativesCollator(model.preprocess, values["index"])
        dataset = Dataset.from_dict(values["columns"])
        folder = Path(given).parent / f"{name}-{processes}"
        fit(model, dataset, loss, folder, collator, per_device_train_batch_size=8 // processes)
        found[name] = dict(model[0].auto_model.state_dict())
    return found


@pytest.mark.slow
def test_two_processes_give_the_same_weights_as_one(without_dropout, sample_rows, indexed, tmp_path):
    given = tmp_path / "given.json"
    texts = sample_rows[:24]
    texts[9] = texts[12]  # identical texts in different processes
    columns = {"anchor": texts, "positive": texts, "row": list(range(24))}
    cases = {
        "mixed": {"objective": "nt-xent", "logits": "focal", "mixed": "paper"},
        "cached": {"mixed": "paper", "cached": True, "mini_batch_size": 3, "hard_negative_weight": 2.0},
    }
    values = {"model": str(without_dropout), "index": str(indexed / "tfidf"), "columns": columns, "cases": cases}
    given.write_text(json.dumps(values), encoding="utf8")
    entry = "test_sentence_transformers:gathered_weights_of_a_rank"
    run_ranks(2, given, tmp_path / "two.pt", cwd=tmp_path, entry=entry)
    one, two = gathered_weights(given, 1), torch.load(tmp_path / "two.pt")
    start = load(without_dropout)[0].auto_model.state_dict()
    for name in cases:
        assert_same(one[name], two[name], 1e-9)
        assert max(float((one[name][key] - value).abs().max()) for key, value in start.items()) > 1e-3


def test_processes_with_different_numbers_of_rows_are_refused(monkeypatch):
    monkeypatch.setattr("cse.sentence_transformers.loss.all_gather", lambda counts: torch.tensor([*counts, 3]))
    refuses(r"have 4, 3 rows in a batch.*dataloader_drop_last=True", check_equal_rows, torch.zeros(4, 2))


def test_workers_of_a_data_loader_use_the_current_epoch(tiny_bert, sample_rows, sample_index):
    model = load(tiny_bert)
    dataset = number_rows(Dataset.from_dict({"anchor": sample_rows[:4], "positive": sample_rows[:4]}))
    collator = NegativesCollator(model.preprocess, sample_index)
    loader = DataLoader(dataset, batch_size=4, collate_fn=collator, num_workers=1, persistent_workers=True)
    for epoch in (0, 1):
        collator.epoch = epoch
        (found,) = loader
        expected = collator([dataset[row] for row in range(4)])
        assert torch.equal(found["negative_input_ids"], expected["negative_input_ids"])
        assert found["anchor_cse_epoch"].tolist() == [epoch] * 4


def test_an_evaluation_before_training_uses_the_prompts(without_dropout, sample_rows, sample_index, tmp_path):
    texts = sample_rows[:16]
    dataset = number_rows(Dataset.from_dict({"anchor": texts, "positive": texts[::-1]}))
    model = load(without_dropout)
    losses = []
    for prompts in ({"anchor": "a rather long question about this: "}, None):
        collator = NegativesCollator(model.preprocess, sample_index)
        values = {"max_steps": 1, "learning_rate": 0.0, "prompts": prompts, "evaluated": dataset}
        trainer = trainer_of(model, dataset, InfoNCELoss(model), tmp_path, collator, **values)
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        losses.append(before)
        assert trainer.evaluate()["eval_loss"] == before
    assert losses[0] != losses[1]
