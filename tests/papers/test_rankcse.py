"""RankCSE equals double loops in float64, and trains."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cse import InputError
from cse.context import Context
from cse.training.loop import train
from cse.views import Views
from cse_papers.rankcse import RankCSE, RankCSEOptions
from runs import drawn


def cosines(a, b):
    return [[float(x @ y / x.norm() / y.norm()) for y in b] for x in a]


@pytest.mark.parametrize("ranking", ["listnet", "listmle"])
@pytest.mark.parametrize("valid", [[True] * 5, [True, True, False, True, True]])
def test_the_loss_equals_its_double_loop(monkeypatch, ranking, valid):
    z1, z2, *taught = (drawn(5, 4, seed=n) for n in range(6))
    teachers = {"a": taught[:2], "b": taught[2:]}
    monkeypatch.setattr(Context, "load_model", lambda self, name, flag, same_tokens: NamedTeacher(name))
    options = RankCSEOptions(("a", "b"), 0.3, ranking, 0.7, 0.4, temperature=0.2, teacher_temperature=0.1)
    term = RankCSE(options, Context())
    step = SimpleNamespace(encode=lambda view, model: teachers[model.name][view == "positive"])
    views = Views({"anchor": z1, "positive": z2}, masks={"positive": torch.tensor(valid)})
    s = np.array(cosines(z1, z2)) / 0.2
    t = sum(w * np.array(cosines(*teachers[name])) for w, name in ((0.3, "a"), (0.7, "b"))) / 0.1
    rows = [i for i in range(5) if valid[i]]
    rank, js = 0.0, 0.0
    for i in rows:
        if ranking == "listnet":
            others = [j for j in rows if j != i]
            for j in others:
                p = math.exp(t[i, j]) / sum(math.exp(t[i, k]) for k in others)
                rank -= p * math.log(math.exp(s[i, j]) / sum(math.exp(s[i, k]) for k in others))
        else:
            order = sorted(rows, key=lambda j: -t[i, j])
            for k, j in enumerate(order):
                rank += math.log(sum(math.exp(s[i, m]) for m in order[k:])) - s[i, j]
        for j in rows:
            p = math.exp(s[i, j]) / sum(math.exp(s[i, k]) for k in rows)
            q = math.exp(s[j, i]) / sum(math.exp(s[k, i]) for k in rows)
            js += (p * math.log(2 * p / (p + q)) + q * math.log(2 * q / (p + q))) / 2
    assert term(views, step).item() == pytest.approx((0.7 * rank + 0.4 * js) / len(rows), rel=1e-9)


class NamedTeacher(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name


def test_a_run_with_rankcse_logs_its_ranking_and_refuses_three_teachers(run_config, tiny_bert):
    config = run_config.replace(loss_terms=("rankcse",), rankcse={"teachers": (str(tiny_bert),)}, max_steps=3)
    assert "ranking" in (train(config.replace(log_every=1)).folder / "log.jsonl").read_text()
    with pytest.raises(InputError, match=r"rankcse\.teachers: must be one or two encoders, got 3"):
        train(config.replace(rankcse={"teachers": (str(tiny_bert),) * 3}))
