"""Tables of the results of benches/domain/domain.py.

A candidate is a recipe of domain_candidates.py. Trained weights are averaged with the base weights, and a share (0 to
1) is the weight of the base model in this average. A run gives one observation for each share. Label-free scores are
those that need no relevance judgements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cse.evaluation.significance import t_interval

Vector = npt.NDArray[np.float64]
Runs = dict[str, Any]

RESAMPLES = 2000
HARM = -0.5  # an observation is harmful if its change in nDCG@10 is below this
# A collection appears in the tables of label-free scores if at least ENOUGH_RUNS runs were trained on it. A threshold
# is chosen on a collection if at least ENOUGH_HARMFUL of its observations are harmful.
ENOUGH_RUNS = 5
ENOUGH_HARMFUL = 3
# When a threshold is chosen on a collection, at most this fraction of its harmless observations may be flagged.
ALARMS = 0.1


def bases_of(found: Runs) -> dict[str, Any]:
    """Returns the records of the base model, by collection."""
    return {each["collection"]: each for each in found.values() if each["name"] == "base"}


def candidate_of(run: dict[str, Any]) -> str:
    """Returns the name of the candidate of a run, with the number of steps if it is not 60."""
    name, steps = str(run["name"]), run["settings"]["max_steps"]
    return name if steps == 60 else f"{name}, {steps} steps"


def differences(found: Runs) -> dict[tuple[str, str], dict[str, dict[str, Vector]]]:
    """Returns each query's difference from the base model, by (candidate, share), collection and metric.

    The differences are means over seeds.
    """
    bases = bases_of(found)
    grouped: dict[tuple[str, str], dict[str, dict[str, list[Vector]]]] = {}
    for run in found.values():
        if run["name"] == "base":
            continue
        before = bases[run["collection"]]["references"]["base"]
        for share, figures in run["shares"].items():
            place = grouped.setdefault((candidate_of(run), share), {}).setdefault(run["collection"], {})
            for metric in ("ndcg", "recall"):
                place.setdefault(metric, []).append(np.array(figures[metric]) - np.array(before[metric]))
    return {
        key: {name: {metric: np.mean(each, axis=0) for metric, each in one.items()} for name, one in sets.items()}
        for key, sets in grouped.items()
    }


def stratified(values: list[Vector]) -> tuple[float, float, float]:
    """Returns the mean over collections of the means over queries, with its 95 % bootstrap interval over queries."""
    generator = np.random.default_rng(0)
    means = np.zeros(RESAMPLES)
    for each in values:
        means += each[generator.integers(0, len(each), (RESAMPLES, len(each)))].mean(1) / len(values)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(np.mean([each.mean() for each in values])), float(low), float(high)


def references(found: Runs) -> str:
    """Returns a table of the scores of the model before training, of BM25, and of the fusion of these two."""
    bases = bases_of(found)
    names = sorted(bases)
    queries = [len(bases[name]["references"]["base"]["ndcg"]) for name in names]
    lines = [
        f"| nDCG@10 / recall@100 | {' | '.join(f'{n}, {q} queries' for n, q in zip(names, queries, strict=True))} |"
    ]
    lines.append("| --- |" + " ---: |" * len(names))
    labels = {"base": "before training (base)", "BM25": "BM25", "both by reciprocal ranks": "fusion of base and BM25"}
    for kind, label in labels.items():
        cells = [
            " / ".join(f"{np.mean(bases[name]['references'][kind][metric]):.2f}" for metric in ("ndcg", "recall"))
            for name in names
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def over_seeds(found: Runs) -> dict[tuple[str, str], list[float]]:
    """Returns mean changes in nDCG@10 by (candidate, share), one for each seed that was run on all collections."""
    bases = bases_of(found)
    gains: dict[tuple[str, str], dict[int, list[float]]] = {}
    for run in found.values():
        if run["name"] == "base":
            continue
        before = np.mean(bases[run["collection"]]["references"]["base"]["ndcg"])
        for share, figures in run["shares"].items():
            seeds = gains.setdefault((candidate_of(run), share), {})
            seeds.setdefault(run["seed"], []).append(float(np.mean(figures["ndcg"]) - before))
    return {
        key: [float(np.mean(each)) for each in seeds.values() if len(each) == len(bases)]
        for key, seeds in gains.items()
    }


def table(found: Runs) -> str:
    """Returns a table of the changes from the base model, with a row for each (candidate, share).

    The rows are sorted by the number of collections with a run, then by the mean change in nDCG@10, largest first.
    """
    names = sorted(bases_of(found))
    lines = [
        f"| recipe | base weight | {' | '.join(names)} | mean nDCG@10 | over queries | over seeds | "
        "mean recall@100 | worst nDCG@10, recall@100 |"
    ]
    lines.append("| --- |" + " ---: |" * (len(names) + 6))
    seeds = over_seeds(found)
    rows: list[tuple[int, float, str]] = []
    for (name, share), sets in differences(found).items():
        cells = [
            f"{sets[each]['ndcg'].mean():+.2f} / {sets[each]['recall'].mean():+.2f}" if each in sets else ""
            for each in names
        ]
        mean, low, high = stratified([each["ndcg"] for each in sets.values()])
        recall = np.mean([each["recall"].mean() for each in sets.values()])
        worst = [min(each[metric].mean() for each in sets.values()) for metric in ("ndcg", "recall")]
        gains = seeds.get((name, share), [])
        spread = "one seed"
        if len(gains) > 1:
            interval = t_interval(gains)
            spread = f"[{interval.low:+.2f}, {interval.high:+.2f}], {len(gains)} seeds"
        cells += [f"{mean:+.2f}", f"[{low:+.2f}, {high:+.2f}]", spread]
        cells += [f"{recall:+.2f}", f"{worst[0]:+.2f}, {worst[1]:+.2f}"]
        rows.append((len(sets), mean, f"| {name} | {share} | {' | '.join(cells)} |"))
    lines += [text for _, _, text in sorted(rows, key=lambda row: row[:2], reverse=True)]
    runs = sum(each["name"] != "base" for each in found.values())
    note = (
        f"{runs} runs, one for each candidate, collection and seed. Cells are differences from the base model in "
        "nDCG@10 / recall@100, as means over seeds. Intervals are 95 % intervals."
    )
    return "\n".join([*lines, "", f"{note} Means, intervals and worst values are over the collections with a run."])


def observations(found: Runs, name: str) -> tuple[Vector, dict[str, Vector], npt.NDArray[np.int64]]:
    """Returns the observations of a collection: changes in nDCG@10, and relative changes in label-free scores.

    The third array gives, for each observation, the index of its run.
    """
    base = bases_of(found)[name]
    before = float(np.mean(base["references"]["base"]["ndcg"]))
    gains, scores, runs = [], [], []
    for number, run in enumerate(found.values()):
        if run["name"] == "base" or run["collection"] != name:
            continue
        for figures in run["shares"].values():
            gains.append(float(np.mean(figures["ndcg"])) - before)
            old = base["label_free"]
            scores.append({key: (value - old[key]) / abs(old[key]) for key, value in figures["label_free"].items()})
            runs.append(number)
    keys = scores[0] if scores else {}
    columns = {key: np.array([each[key] for each in scores]) for key in keys}
    ranks = {key: (each.argsort().argsort() + 0.5) / len(each) for key, each in columns.items()}
    if ranks:
        columns["mean rank of the known searches"] = np.mean(
            [each for key, each in ranks.items() if key.startswith("known")], axis=0
        )
    return np.array(gains), columns, np.array(runs)


def enough(found: Runs) -> dict[str, tuple[Vector, dict[str, Vector], npt.NDArray[np.int64]]]:
    """Returns the observations of the collections with enough trained runs."""
    data = {name: observations(found, name) for name in sorted(bases_of(found))}
    return {name: each for name, each in data.items() if len(np.unique(each[2])) >= ENOUGH_RUNS}


def spearman(first: Vector, second: Vector) -> float:
    """Returns Spearman's correlation of two vectors; 0 if either is constant."""
    from scipy.stats import rankdata

    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(rankdata(first), rankdata(second))[0, 1])


def correlations(found: Runs) -> str:
    """Returns a table of Spearman's correlations between label-free scores and changes in nDCG@10.

    The 95 % intervals are bootstrapped over runs.
    """
    data = enough(found)
    names = list(data)
    if not names:
        return f"No collection has the {ENOUGH_RUNS} trained runs which the evaluation of label-free scores needs."
    counts = {name: f"{len(each[0])} observations, {len(set(each[2].tolist()))} runs" for name, each in data.items()}
    lines = [f"| score without labels | {' | '.join(f'{name}, {counts[name]}' for name in names)} |"]
    lines.append("| --- |" + " ---: |" * len(names))
    for score in data[names[0]][1]:
        cells = []
        for name in names:
            gains, scores, runs = data[name]
            generator, values = np.random.default_rng(0), []
            groups = [np.flatnonzero(runs == run) for run in np.unique(runs)]
            for _ in range(RESAMPLES // 4):
                rows = np.concatenate([groups[i] for i in generator.integers(0, len(groups), len(groups))])
                values.append(spearman(gains[rows], scores[score][rows]))
            low, high = np.quantile(values, [0.025, 0.975])
            cells.append(f"{spearman(gains, scores[score]):+.2f} [{low:+.2f}, {high:+.2f}]")
        lines.append(f"| {score} | {' | '.join(cells)} |")
    return "\n".join(lines)


def flags(found: Runs) -> str:
    """Returns a table of the fractions of harmful and of other observations that a label-free score flags as harmful.

    Each row shows the score, sign and threshold that were chosen on one collection.
    """
    data = enough(found)
    names = list(data)
    if not names:
        return ""
    lines = [f"| chosen on | score | threshold | {' | '.join(names)} |"]
    lines.append("| --- | --- | ---: |" + " ---: |" * len(names))
    for chooser in names:
        gains, scores, _ = data[chooser]
        if (gains < HARM).sum() < ENOUGH_HARMFUL:
            lines.append(f"| {chooser} | fewer than {ENOUGH_HARMFUL} harmful observations | |{' |' * len(names)}")
            continue
        usable = {key: each for key, each in scores.items() if not key.startswith("mean rank")}
        best = max(usable, key=lambda key: abs(spearman(gains, usable[key])))
        sign = 1.0 if spearman(gains, usable[best]) >= 0 else -1.0
        limit = limit_of(sign * usable[best], gains < HARM)
        cells = []
        for name in names:
            others, columns, _ = data[name]
            flagged, harmful = sign * columns[best] < limit, others < HARM
            caught = f"{flagged[harmful].mean():.0%} of {harmful.sum()}" if harmful.any() else "none harmful"
            alarms = f"{flagged[~harmful].mean():.0%}" if (~harmful).any() else "none harmless"
            cells.append(f"{caught}, alarms {alarms}{' (chosen here)' if name == chooser else ''}")
        shown = f"{'below' if sign > 0 else 'above'} {sign * limit:+.1%}"
        lines.append(f"| {chooser} | {best} | {shown} | {' | '.join(cells)} |")
    note = (
        "Cells: the fraction of harmful observations (nDCG@10 falls by more than 0.5) that are flagged, and the "
        "fraction of the other observations that are flagged (alarms)."
    )
    return "\n".join([*lines, "", note])


def limit_of(score: Vector, harmful: npt.NDArray[np.bool_]) -> float:
    """Returns the highest threshold with at most ``ALARMS`` of the harmless scores below it; inf if there are none."""
    harmless = np.sort(score[~harmful])
    allowed = int(ALARMS * len(harmless))
    if not len(harmless):
        return float("inf")
    return float(harmless[allowed]) if allowed < len(harmless) else float("inf")
