"""PCL: the edits of the released code, the losses of both encoders as loops in float64, and the peer in a run."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cse import InputError, train
from cse.context import ModelContext, TextContext
from cse.losses.contrastive import contrastive_loss
from cse.rng import Draws
from cse.training.setup import prepare
from cse.views import Views
from cse_papers.pcl import PCL, Diverse, DiverseOptions, PCLOptions
from runs import after_head, drawn, first_batches

ROWS = np.arange(40) * 7
EDITS = ("shuffle", "reverse", "delete", "repeat", "shuffle", "dropout")


def edits_of(edits, **options):
    first = Diverse(DiverseOptions(edits=edits, **options), TextContext())
    return [first, *first.further()]


def sentences():
    """Sentences of 0 to 39 tokens, in which tokens repeat."""
    return [[place * place % 11 for place in range(length)] for length in range(len(ROWS))]


@pytest.mark.parametrize("longest", [0, 30])
def test_the_edits_are_those_of_the_released_code(longest):
    """Loops over sentences; the numbers that the release draws from Python's generator are those of ``Draws``."""
    draws = Draws(3, 1)
    for number, (kind, edit) in enumerate(zip(EDITS, edits_of(EDITS, longest=longest), strict=True)):
        found = edit.edit_tokens(sentences(), ROWS, draws)
        for tokens, new, row in zip(sentences(), found, ROWS, strict=True):
            u = draws.uniform(np.array([row]), f"diverse {number}", 40)[0]
            v = draws.uniform(np.array([row]), f"diverse place {number}", 40)[0]
            n, expected = len(tokens), list(tokens)
            if kind == "shuffle":
                expected = [token for _, token in sorted(zip(u[:n], tokens, strict=True), key=lambda pair: pair[0])]
            elif kind == "reverse":
                expected = [tokens[n - 1 - place] for place in range(n)]
            elif kind == "delete":
                for time in range(round(0.2 * n)):
                    chosen = expected[math.floor(u[time] * len(expected))]
                    del expected[expected.index(chosen)]
            elif kind == "repeat":
                for time in range(round(0.2 * n)):
                    if longest and len(expected) >= longest:
                        break
                    chosen = expected[math.floor(u[time] * len(expected))]
                    place = math.floor(v[time] * (len(expected) + 1))
                    expected.insert(place, chosen)
            assert new == expected
            assert len(new) <= edit.most_tokens(n)
        assert (found == sentences()) == (kind == "dropout")
        # Each sentence depends on its own row only.
        assert edit.edit_tokens(sentences()[20:25], ROWS[20:25], draws) == found[20:25]
        changed = edit.edit_tokens(sentences(), ROWS, Draws(3, 2)) != found
        assert changed == (kind in ("shuffle", "delete", "repeat"))


def test_a_batch_has_one_view_per_edit_of_the_tokens_between_the_special_tokens(run_config):
    run = prepare(run_config.replace(positive="diverse", loss_terms=("pcl",), diverse={"longest": 9}))
    (batch,) = first_batches(run)
    names = ["edited", *(f"edited_{number}" for number in range(2, 9))]
    assert batch.views == ["anchor", "positive", *names]
    assert [batch.roles[name] for name in names] == ["other"] * 8

    def ids(name):
        tokens = batch.tokens[name]
        return [
            row[mask.bool()].tolist() for row, mask in zip(tokens["input_ids"], tokens["attention_mask"], strict=True)
        ]

    inner = [row[1:-1] for row in ids("anchor")]
    method = run.batches.positive
    for name, edit in zip(names, [method, *method.further()], strict=True):
        expected = edit.edit_tokens(inner, batch.rows, Draws(run.settings.output.seed, batch.epoch))
        for row, new, old in zip(ids(name), expected, ids("anchor"), strict=True):
            assert row == [old[0], *new, old[-1]]
    assert ids("edited_2") == ids("edited_6") != ids("anchor")


def cosine(x, y):
    return x @ y / x.norm() / y.norm() / 0.1


def distributions(anchors, group, others, rows, duplicates=()):
    """Softmax over the positives of an anchor and the anchors of the other rows, for each valid row."""
    found = []
    for i in rows:
        s = [cosine(anchors[i], z[i]) for z in group]
        s += [cosine(anchors[i], others[j]) for j in rows if j != i and {i, j} not in duplicates]
        exponentials = [each.exp() for each in s]
        found.append([each / sum(exponentials) for each in exponentials])
    return found


def kl(first, peer):
    cells = [pair for rows in zip(first, peer, strict=True) for pair in zip(*rows, strict=True)]
    terms = [q * (q.log() - p.log()) for p, q in cells]
    return sum(terms) / len(terms)


def bce(rows, positives):
    terms = []
    for row in rows:
        for place, p in enumerate(row):
            sigmoid = 1 / (1 + (-p).exp())
            terms.append(-(sigmoid if place < positives else 1 - sigmoid).log())
    return sum(terms) / len(terms)


def contrast(views):
    settings = {"roles": views.roles, "masks": views.masks, "keys": views.keys}
    return contrastive_loss(views.embeddings, logits="focal", margin=0.2, temperature=0.3, **settings)


def term_of(run_config, **options):
    state = prepare(run_config).state
    return PCL(PCLOptions(**options), ModelContext(encoder=state.encoder))


@pytest.mark.parametrize("masked", [False, True])
def test_pcl_and_its_gradients_equal_loops(run_config, masked):
    names = ("anchor", "positive", "edited", "edited_2")
    z, peer = (
        {name: drawn(6, 4, seed=start + number).requires_grad_() for number, name in enumerate(names)}
        for start in (0, 10)
    )
    roles = {"anchor": "anchor", "positive": "positive", "edited": "other", "edited_2": "other"}
    rows, masks, keys = range(6), {}, {}
    if masked:
        rows, masks = (0, 1, 3, 4, 5), {"positive": torch.tensor([True, True, False, True, True, True])}
        keys = dict.fromkeys(("anchor", "positive"), torch.tensor([0, 1, 2, 3, 0, 5])[:, None])
    equal = [{0, 4}] if masked else []
    step = SimpleNamespace(encode=lambda name, encoder: peer[name], contrastive=contrast, temperature=0.1)
    term = term_of(run_config, cooperation=0.7, contrast=0.4)
    found = term(Views(z, roles, masks, keys=keys), step)

    def group(views):
        return [views[name] for name in names[1:]]

    a, b = z["anchor"], peer["anchor"]
    own = distributions(a, group(z), a, rows, equal)
    of_peer = distributions(b, group(peer), b, rows, equal)
    cross = distributions(a, group(peer), b, rows, equal), distributions(b, group(z), a, rows, equal)
    alone = contrast(Views(peer, roles, masks, keys=keys))
    cooperation, classified = kl(*cross) + kl(own, of_peer), bce(own, 3) + bce(of_peer, 3)
    assert found.item() == pytest.approx((alone + 0.7 * cooperation + 0.4 * classified).item(), rel=1e-9)
    assert term.metrics["pcl_peer"].item() == pytest.approx(alone.item(), rel=1e-9)
    assert term.metrics["pcl_cooperation"].item() == pytest.approx(cooperation.item(), rel=1e-9)
    assert term.metrics["pcl_contrast"].item() == pytest.approx(classified.item(), rel=1e-9)
    # No gradient is stopped: each encoder also learns from being the target of the other.
    inputs = [*z.values(), *peer.values()]
    expected = torch.autograd.grad(alone + 0.7 * cooperation + 0.4 * classified, inputs)
    for ours, theirs in zip(torch.autograd.grad(found, inputs), expected, strict=True):
        assert theirs.abs().max() > 1e-6
        assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-12)


def test_the_peer_is_trained_and_kept_in_checkpoints_but_not_saved(run_config):
    config = run_config.replace(loss_terms=("pcl",), max_steps=2, save_every=2, eval_every=0, name="whole")
    run = prepare(config)
    assert run.settings.methods.positive == "diverse"
    encoder, peer = run.state.encoder, run.state.terms["pcl"].peer
    pairs = list(zip(encoder.named_parameters(), peer.parameters(), strict=True))
    assert all(torch.equal(one, other) and one is not other for (_, one), other in pairs)
    assert all(f"terms.pcl.peer.{name}" in run.state.weights() for name, _ in encoder.named_parameters())
    start = {name: value.detach().clone() for name, value in encoder.backbone.state_dict().items()}
    folder = train(config).folder
    (checkpoint,) = (folder / "checkpoints").glob("step-*")
    stored = {}
    for path in checkpoint.rglob("*.safetensors"):
        stored |= load_file(path)
    (best,) = (folder / "best").rglob("model.safetensors")
    saved = load_file(best)
    assert len(saved) == len(start)
    name = "encoder.layer.0.attention.self.query.weight"
    of_encoder, of_peer = stored[f"encoder.0.model.{name}"], stored[f"terms.pcl.peer.0.model.{name}"]
    assert torch.equal(saved[name], of_encoder)
    assert not torch.equal(of_encoder, of_peer)
    assert not torch.equal(start[name], of_peer)


def test_the_peer_of_the_release_has_the_pooler_of_the_checkpoint_and_the_head_of_the_encoder(run_config):
    run = prepare(run_config.replace(loss_terms=("pcl",), pooler="cls", keep_head=True, pcl={"variant": "release"}))
    encoder, term = run.state.encoder.double().eval(), run.state.terms["pcl"].double()
    tokens = dict(encoder.tokenizer(["a b c", "d e"], padding=True, return_tensors="pt"))
    z = term.eval().encode[0].embed(tokens)
    pooler = term.peer.backbone.pooler.dense
    state = term.peer.backbone(**tokens).last_hidden_state[:, 0]
    assert torch.allclose(z, after_head(encoder, torch.tanh(state @ pooler.weight.T + pooler.bias)), atol=1e-12)
    gradients = torch.autograd.grad(z.sum(), [pooler.weight, encoder.head.linear.weight])
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    weights = {id(p) for p in term.parameters()}
    assert id(pooler.weight) in weights
    assert id(encoder.head.linear.weight) not in weights
    encoder.backbone.pooler = None
    with pytest.raises(InputError, match=r"pcl\.variant: .* has no pooler in its checkpoint"):
        PCL(PCLOptions(variant="release"), ModelContext(encoder=encoder))


def test_pcl_needs_edited_sentences_and_a_contrastive_loss(run_config):
    term = term_of(run_config)
    views = Views({"anchor": drawn(4, 3), "positive": drawn(4, 3, seed=1)})
    with pytest.raises(InputError, match="use --positive diverse"):
        term(views, SimpleNamespace(contrastive=contrast, encode=lambda name, encoder: None))
    with pytest.raises(InputError, match="needs --loss standard, focal or mixed"):
        term(views, SimpleNamespace(contrastive=None, encode=lambda name, encoder: None))
    with pytest.raises(InputError, match=r"pcl\.variant"):
        prepare(run_config.replace(loss_terms=("pcl",), pcl={"variant": "other"}))


@pytest.mark.slow
@pytest.mark.parametrize("chunk_size", [None, 3])
def test_the_peer_has_the_dropout_of_the_views(run_config, chunk_size):
    """At the first step, the peer is a copy of the encoder: without dropout, both have the same losses."""
    config = run_config.replace(
        loss_terms=("pcl",), positive="diverse", max_steps=1, chunk_size=chunk_size, precision="fp32", log_every=1
    )
    logs = {}
    for rate in (0.0, 0.3):
        folder = train(config.replace(anchor_dropout=rate, positive_dropout=rate, name=f"rate {rate}")).folder
        records = map(json.loads, (folder / "log.jsonl").read_text("utf8").splitlines())
        logs[rate] = next(record for record in records if "pcl_peer" in record)
    assert logs[0.0]["pcl_peer"] == pytest.approx(logs[0.0]["loss/contrastive"], rel=1e-5)
    assert logs[0.0]["pcl_cooperation"] == pytest.approx(0, abs=1e-9)
    assert logs[0.3]["pcl_cooperation"] > 1e-4


def test_several_edits_are_refused_as_negatives_and_within_one_of(run_config):
    with pytest.raises(InputError, match="--negative diverse makes several sentences, and a negative is one; use --po"):
        prepare(run_config.replace(negatives=("diverse",)))
    with pytest.raises(InputError, match=r"one-of\.edits: diverse makes several sentences at a time; omit diverse"):
        prepare(run_config.replace(positive="one-of", options={"one-of": {"edits": ("crop", "diverse")}}))


def test_equal_edits_draw_different_numbers_and_a_text_is_edited_by_words():
    first, second = edits_of(("shuffle", "shuffle"))
    draws = Draws(0, 0)
    assert first.edit_tokens(sentences(), ROWS, draws) != second.edit_tokens(sentences(), ROWS, draws)
    (reverse,) = edits_of(("reverse",))
    assert reverse(["a b  c", "a  a"], ROWS[:2], draws) == ["c b a", "a  a"]
    (repeat,) = edits_of(("repeat",), longest=6)
    assert [repeat.most_tokens(count) for count in (2, 5, 6, 9)] == [2, 6, 6, 9]
