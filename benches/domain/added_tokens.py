"""Measures how ``cse train --add-tokens`` changes retrieval in a domain.

    python benches/domain/added_tokens.py search --data DIR  # DIR/NAME: a collection for cse eval --suite retrieval
    python benches/domain/added_tokens.py words --data DIR  # prints how many tokens and queries the words concern
    python benches/domain/added_tokens.py table  # prints a table of the stored runs

Each run trains all-MiniLM-L6-v2 with its default recipe (``passages, kept, no UNA`` in domain_candidates.py) on the
documents of one collection, with added tokens, and evaluates the trained weights. Scores are stored in
benches/results/added_tokens.json when the run ends; stored runs are skipped. With ``--tokens 0``, the run adds none.
The table compares each run with the run of the same collection and seed that adds no tokens: the one in
added_tokens.json if there is one, else that in domain.json, which an earlier version of the package trained.
``--steps 0`` evaluates the model with added tokens before training.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from domain import HERE, MODEL, key_of, read, store, trained
from domain import RESULTS as WITHOUT
from domain_candidates import settings_of
from domain_scores import Collection, judged

RESULTS = HERE.parent / "results" / "added_tokens.json"
RECIPE = "passages, kept, no UNA"
RESAMPLES = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("search", "words", "table"))
    parser.add_argument("--data", type=Path, help="Folder with a subfolder for each collection.")
    parser.add_argument("--collections", nargs="*", help="Names of collections, in order; default: all.")
    parser.add_argument("--tokens", nargs="*", type=int, default=[200])
    parser.add_argument("--seeds", nargs="*", type=int, default=[11])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.what != "table" and options.data is None:
        parser.error("--data: missing; name the folder of the collections")
    if options.what == "words":
        print(words(options))
        return
    if options.what == "search":
        search(options)
    print(table(read(options.results)))


def search(options: argparse.Namespace) -> None:
    """Runs what has no stored run. Runs are ordered by number of tokens, then by seed, then by collection."""
    collections = opened(options)
    for tokens in options.tokens:
        for seed in options.seeds:
            for collection in collections:
                settings = {**settings_of(RECIPE), "max_steps": options.steps, "add_tokens": tokens}
                key = key_of(settings, seed, collection)
                if key in read(options.results):
                    continue
                encoder, record = run(settings, seed, collection)
                scores = judged(
                    collection, vectors(encoder, collection.queries) @ vectors(encoder, collection.documents).T
                )
                store(options.results, key, {"tokens": tokens, "seed": seed, "settings": settings, **record, **scores})
                shown = {metric: round(float(np.mean(each)), 2) for metric, each in scores.items()}
                print(f"{collection.name}: {tokens} tokens, seed {seed}: {shown}", file=sys.stderr, flush=True)


def opened(options: argparse.Namespace) -> list[Collection]:
    """Returns the collections to use."""
    names = options.collections or sorted(path.parent.name for path in options.data.glob("*/corpus.*"))
    return [Collection(options.data / name) for name in names]


def words(options: argparse.Namespace) -> str:
    """Returns a Markdown table of the tokens that added words save, and of the queries that have an added word."""
    from cse.models.reading.resolve import find_model
    from cse.models.running.encoder import load_tokenizer
    from cse.models.vocabulary import count_words

    tokenizer = load_tokenizer(find_model(MODEL))
    backend = tokenizer.backend_tokenizer
    lines = [
        "| collection | tokens in divided words | words | tokens saved | queries with one | the first words |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for collection in opened(options):
        counts = count_words(tokenizer, [collection.rows("documents")], "added_tokens.py")
        asked = [backend.normalizer.normalize_str(query) for query in collection.queries]
        asked_words = [{word for word, _ in backend.pre_tokenizer.pre_tokenize_str(query)} for query in asked]
        for number in options.tokens:
            added = counts.divided[:number]
            new, saved = {each.word for each in added}, sum(each.saved for each in added)
            concerned = sum(bool(new & own) for own in asked_words)
            lines.append(
                f"| {collection.name} | {counts.share(2):.1%} | {len(added)} | {saved / counts.tokens:.1%} | "
                f"{concerned} of {len(asked)} | {', '.join(each.word for each in added[:5])} |"
            )
    return "\n".join(lines)


def run(settings: dict[str, Any], seed: int, collection: Collection) -> tuple[Any, dict[str, Any]]:
    """Returns the encoder, and the record of the run without its scores."""
    if settings["max_steps"]:
        return trained(settings, seed, collection, None)
    from cse import Encoder
    from cse.models.vocabulary import add_words, count_words

    encoder: Any = Encoder(MODEL, device="cpu")
    model = encoder.model
    words = count_words(model.tokenizer, [collection.rows("documents")], "added_tokens.py")
    add_words(model.tokenizer, model.backbone, words.most_saving(settings["add_tokens"], MODEL), "added_tokens.py")
    return encoder, {"collection": collection.name, "hash": collection.hash}


def vectors(encoder: Any, texts: list[str]) -> Any:
    """Returns unit-length embeddings in float64."""
    from cse.evaluation.geometry import unit

    return unit(encoder.encode(texts))


def without(found: dict[str, Any]) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Returns the scores of the runs that add no tokens, by collection, seed and number of steps."""
    others = {}
    for record in read(WITHOUT).values():
        if record["name"] == RECIPE:
            others[record["hash"], record["seed"], record["settings"]["max_steps"]] = record["shares"]["0"]
        elif record["name"] == "base":
            others[record["hash"], -1, 0] = record["references"]["base"]
    for record in found.values():
        if not record["tokens"]:
            others[record["hash"], record["seed"], record["settings"]["max_steps"]] = record
    return others


def table(found: dict[str, Any]) -> str:
    """Returns a Markdown table of nDCG@10 / recall@100 without added tokens, with them, and of the differences.

    The intervals of the differences in nDCG@10 are 95 % intervals of a paired bootstrap over queries.
    """
    others = without(found)
    lines = [
        "| collection | seed | added tokens | steps | without | with | change | interval of the change in nDCG@10 |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    changes: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for record in sorted(
        found.values(), key=lambda each: (each["tokens"], each["settings"]["max_steps"], each["seed"])
    ):
        steps, tokens = record["settings"]["max_steps"], record["tokens"]
        other = others.get((record["hash"], record["seed"] if steps else -1, steps))
        if not tokens or other is None:
            continue
        own, own_recall = np.array(record["ndcg"]), float(np.mean(record["recall"]))
        gains, before_recall = own - np.array(other["ndcg"]), float(np.mean(other["recall"]))
        drawn = np.random.default_rng(0).integers(len(gains), size=(RESAMPLES, len(gains)))
        low, high = np.quantile(gains[drawn].mean(1), [0.025, 0.975])
        changes.setdefault((tokens, steps), []).append((float(gains.mean()), own_recall - before_recall))
        lines.append(
            f"| {record['collection']} | {record['seed'] if steps else ''} | {tokens} | {steps} | "
            f"{np.mean(other['ndcg']):.2f} / {before_recall:.2f} | {own.mean():.2f} / {own_recall:.2f} | "
            f"{gains.mean():+.2f} / {own_recall - before_recall:+.2f} | [{low:+.2f}, {high:+.2f}] |"
        )
    for (tokens, steps), pairs in changes.items():
        gain, more = np.mean(pairs, axis=0)
        lines.append(f"| mean of {len(pairs)} runs | | {tokens} | {steps} | | | {gain:+.2f} / {more:+.2f} | |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
