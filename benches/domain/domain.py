"""Measures which recipes improve retrieval in a domain, and which label-free scores indicate an improvement.

    python benches/domain/domain.py search --data DIR  # DIR/NAME: a collection for cse eval --suite retrieval
    python benches/domain/domain.py table  # prints a table of the stored runs
    python benches/domain/domain.py score  # tests how well label-free scores predict the change in nDCG@10

Each run trains all-MiniLM-L6-v2 (the base model) on the documents of one collection, of which 4 to 10 % are held out
for the label-free scores. Queries and judgements are never used for training. The trained weights and their averages
with the base weights are evaluated, and the scores are stored in benches/results/domain.json when the run ends. A run
is identified by a hash of settings, seed and collection; stored runs are skipped. The table shows differences from the
base model in points (scores x 100). Its intervals over queries come from a bootstrap stratified by collection, and its
intervals over seeds from Student's t-distribution.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from domain_candidates import CANDIDATES, settings_of
from domain_scores import Collection, Embedded, embed, judged, label_free
from domain_tables import correlations, flags, references, table

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "domain.json"
IMPORTS = tuple(str(HERE / name) for name in ("domain_methods.py", "domain_texts.py", "domain_distil.py"))
MODEL = "minilm"
SHARES = (0.0, 0.25, 0.5, 0.75)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("search", "table", "score"))
    parser.add_argument("--data", type=Path, help="Folder with a subfolder for each collection.")
    parser.add_argument("--only", nargs="*", help="Names of candidates; default: all.")
    parser.add_argument("--collections", nargs="*", help="Names of collections; default: all.")
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--steps", type=int, help="Number of steps; default: that of the candidate.")
    parser.add_argument("--hours", type=float, help="Start no new run after this many hours.")
    parser.add_argument(
        "--shares", nargs="*", type=float, default=SHARES, help="Weights of the base model in the averages to evaluate."
    )
    parser.add_argument(
        "--weights",
        type=Path,
        help="Keep trained encoders in this folder, so that further --shares can be evaluated later.",
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.what == "search":
        if options.data is None:
            parser.error("--data: missing; name the folder of the collections")
        unknown = set(options.only or ()) - set(CANDIDATES)
        if unknown:
            parser.error(f"--only: {min(unknown)!r} is not a candidate; choose from {', '.join(CANDIDATES)}")
        search(options)
    found = read(options.results)
    if options.what != "score":
        print(references(found), table(found), sep="\n\n")
    else:
        print(correlations(found), flags(found), sep="\n\n")


def search(options: argparse.Namespace) -> None:
    """Runs the candidates that have no stored run, and evaluates the averages that are missing from stored runs.

    Runs are ordered by seed, then by candidate, then by collection.
    """
    from cse import Encoder

    started = time.perf_counter()
    folders = sorted(path.parent for path in options.data.glob("*/corpus.*"))
    collections = [Collection(path) for path in folders if not options.collections or path.name in options.collections]
    bases: dict[str, Embedded] = {}
    for seed in options.seeds:
        for name in options.only or CANDIDATES:
            settings = settings_of(name, options.steps)
            for collection in collections:
                if options.hours and time.perf_counter() - started > 3600 * options.hours:
                    return
                key = key_of(settings, seed, collection)
                record = read(options.results).get(key)
                kept = options.weights / key if options.weights else None
                missing = [each for each in options.shares if record is None or f"{each:g}" not in record["shares"]]
                if not missing or (record is not None and (kept is None or not kept.exists())):
                    continue  # nothing is missing, or the encoder of the stored run was not kept
                base = base_of(collection, bases, options.results, options.weights)
                began = time.perf_counter()
                if record is None:
                    encoder, record = trained(settings, seed, collection, kept)
                    record = {"name": name, "seed": seed, "settings": settings, **record}
                else:
                    encoder = Encoder(str(kept), device="cpu")
                record["shares"] |= averages(encoder, collection, base, missing)
                store(options.results, key, record)
                shown = {share: each["label_free"]["known held words"] for share, each in record["shares"].items()}
                seconds = f"{record['train_seconds']:.0f} s trained, {time.perf_counter() - began:.0f} s in all"
                print(f"{collection.name}: {name}, seed {seed}: {seconds}, {shown}", file=sys.stderr, flush=True)


def key_of(settings: dict[str, Any], seed: int, collection: Collection) -> str:
    """Returns the hash under which a run is stored."""
    text = json.dumps([MODEL, settings, seed, collection.name, collection.hash], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def embedded(collection: Collection, kept: Path | None) -> Embedded:
    """Returns the embeddings of the base model. If the folder ``kept`` is given, they are stored in it and reused."""
    from cse import Encoder

    path = kept / f"base-{collection.name}-{collection.hash}.npz" if kept else None
    if path is not None and path.exists():
        with np.load(path) as arrays:
            return Embedded.of(dict(arrays))
    base = embed(Encoder(MODEL, device="cpu"), collection)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".tmp"), "wb") as file:
            np.savez(file, **base.arrays())
        path.with_suffix(".tmp").replace(path)
    return base


def base_of(collection: Collection, known: dict[str, Embedded], results: Path, kept: Path | None) -> Embedded:
    """Returns the embeddings of the base model; stores its scores and those of BM25 if they are not stored yet."""
    if collection.name not in known:
        base = known[collection.name] = embedded(collection, kept)
        key = key_of({}, 0, collection)
        if key not in read(results):
            cosines, lexical = base.queries @ base.documents.T, collection.lexical(collection.queries)
            ranks = [(-scores).argsort(1).argsort(1) + 1 for scores in (cosines, lexical)]
            figures = {
                "base": judged(collection, cosines),
                "BM25": judged(collection, lexical),
                "both by reciprocal ranks": judged(collection, 1 / (60 + ranks[0]) + 1 / (60 + ranks[1])),
            }
            sizes = {"documents": len(collection.documents), "held_out": len(collection.held_out)}
            found = {"label_free": label_free(collection, base, base), "references": figures, **sizes}
            store(results, key, {"name": "base", "collection": collection.name, "hash": collection.hash, **found})
    return known[collection.name]


def trained(settings: dict[str, Any], seed: int, collection: Collection, kept: Path | None) -> tuple[Any, Any]:
    """Trains on the documents of a collection; returns the encoder and the record of the run, without scores."""
    from cse import Encoder, TfidfIndex, TrainConfig, train

    given = {"loss_terms": [], **settings}  # candidates do not inherit the default loss terms of the model
    if "spans" in given:
        given["spans"] = {"most_words": 10_000, **given["spans"]}
    rows = collection.rows(given.pop("rows"))
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.txt"
        corpus.write_text("\n".join(rows) + "\n", encoding="utf8")
        TfidfIndex.build(corpus).save(f"{folder}/tfidf")
        config = TrainConfig(
            corpus=str(corpus),
            tfidf=f"{folder}/tfidf",
            output=folder,
            model=MODEL,
            seed=seed,
            eval_every=0,
            device="cpu",
            log_every=1,
            imports=IMPORTS,
            **given,
        )
        result = train(config)
        records = map(json.loads, (result.folder / "log.jsonl").read_text().splitlines())
        losses = [record["loss"] for record in records if "loss" in record]
        encoder = Encoder(result.folder / "last", device="cpu")
        if kept:
            shutil.copytree(result.folder / "last", kept, dirs_exist_ok=True)
    return encoder, {
        "collection": collection.name,
        "hash": collection.hash,
        "rows": len(rows),
        "train_seconds": result.seconds,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "shares": {},
        "versions": {name: version(name) for name in ("cse", "torch", "transformers")},
    }


def averages(encoder: Any, collection: Collection, base: Embedded, shares: Sequence[float]) -> dict[str, Any]:
    """Returns the scores of averages of trained and base weights, by share (the weight of the base model)."""
    from cse import Encoder

    original: Any = Encoder(MODEL, device="cpu")
    start = dict(original[0].model.named_parameters())
    parameters = {name: (each, each.detach().clone()) for name, each in encoder[0].model.named_parameters()}
    found = {}
    for share in shares:
        for name, (parameter, trained) in parameters.items():
            parameter.data.copy_(trained.lerp(start[name].detach(), share))
        new = embed(encoder, collection)
        found[f"{share:g}"] = {
            **judged(collection, new.queries @ new.documents.T),
            "label_free": label_free(collection, new, base),
        }
    return found


def read(path: Path) -> dict[str, Any]:
    """Returns the stored records by key; an empty dict if the file does not exist."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def store(path: Path, key: str, record: dict[str, Any]) -> None:
    """Stores a record in the file, in place of any record with the same key."""
    part = path.with_suffix(".tmp")
    lines = [f"{json.dumps(each)}: {json.dumps(value)}" for each, value in (read(path) | {key: record}).items()]
    part.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    part.replace(path)


if __name__ == "__main__":
    main()
