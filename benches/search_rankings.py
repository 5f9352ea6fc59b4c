"""Measures the time of a query, and the bytes of a row, for each kind of ranking of ``cse search``.

    python benches/search_rankings.py [--rows 1000 100000 1000000] [--threads 2] [--rounds 5] [--json FILE]

Vectors are random, of unit length. Texts are 20 words drawn with the frequencies of Zipf's law from 50,000 words, and
the query consists of five of them. All rankings are timed alternately in one process; the times are medians over the
rounds, and do not contain the encoding of the query. The neighbours of smoothing are those of a real computation up to
10,000 rows, whose time is printed, and random ones above, which take the same time in a search.

Ranking again by the vectors of tokens is measured with all-MiniLM-L6-v2 on 1,000 rows of the same words: its time
depends on the number of rows that are ranked again (100), and not on the size of the index.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

BM25 = "BM25 alone"
SUM = {"kind": "scores"}
RANKINGS: dict[str, tuple[dict[str, Any] | None, bool]] = {
    "vectors alone": (None, False),
    "smoothed vectors": (None, True),
    "reciprocal ranks (--fusion rrf)": ({"kind": "rrf"}, False),
    "pool (--hybrid --no-smooth)": ({}, False),
    "pool, feedback (--no-smooth --feedback 5)": ({"feedback": 5}, False),
    "smoothed, feedback, pool (--hybrid)": ({}, True),
    "added scores (--fusion scores --no-smooth)": (SUM, False),
    "smoothed, feedback, added scores (--fusion scores)": (SUM, True),
}


def texts_of(rows: int) -> list[str]:
    """Returns random texts."""
    import numpy as np

    words = np.array([f"w{number}" for number in range(50_000)])
    chance = 1 / np.arange(1, len(words) + 1)
    drawn = np.random.default_rng(0).choice(len(words), (rows, 20), p=chance / chance.sum())
    return [" ".join(line) for line in words[drawn].tolist()]


def size(folder: Path, pattern: str) -> int:
    """Returns the total size of the files of a folder that match a pattern."""
    return sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())


def latency(rows: int, width: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Times the rankings in an index of some rows."""
    import numpy as np
    from cse.search.store import save_arrays

    from cse import Encoder, SearchIndex
    from cse.search.fusion import Fusion
    from cse.search.hybrid import NEIGHBOURS

    encoder = Encoder(f"random:{width}", device="cpu")
    texts = texts_of(rows)
    index = SearchIndex.build(encoder, texts, folder)
    bm25 = index.bm25()  # with the terms of the rankings, since no word is in a list of stop words
    found: dict[str, Any] = {"rows": rows}
    if rows <= 10_000:
        started = time.perf_counter()
        index.smoothing()
        found["smoothing_seconds"] = time.perf_counter() - started
    else:
        near = np.random.default_rng(1).integers(0, rows, (rows, NEIGHBOURS)).astype(np.int32)
        name = f"smooth-{index._state.store.generation}-{index._state.terms(Fusion()).name}"
        save_arrays(folder / name, near=near, norms=np.full(rows, 0.8))
    query = " ".join(np.random.default_rng(2).choice(texts).split()[:5])
    vectors = encoder.encode([query])
    times: dict[str, list[float]] = {name: [] for name in (BM25, *RANKINGS)}
    for number in range(rounds + 1):
        started = time.perf_counter()
        bm25.search(query, 10)
        if number:
            times[BM25].append(time.perf_counter() - started)
        for name, (settings, smooth) in RANKINGS.items():
            fusion = None if settings is None else Fusion(**settings)
            started = time.perf_counter()
            index._state.search([query], vectors, 10, fusion, smooth)
            if number:
                times[name].append(time.perf_counter() - started)
    found["milliseconds"] = {name: 1000 * statistics.median(each) for name, each in times.items()}
    found["bytes"] = {
        "vectors and texts": size(folder, "*.arrow") / rows,
        "BM25": size(folder, "bm25-*/*") / rows,
        "smoothing": size(folder, "smooth-*/*") / rows,
    }
    return found


def tokens(rounds: int) -> dict[str, Any]:
    """Times the ranking of 100 rows by the vectors of their tokens, computed for the query or stored."""
    from cse.search.tokens import encode_tokens

    from cse import Encoder, SearchIndex

    encoder = Encoder("minilm", device="cpu")
    texts = texts_of(1000)
    found: dict[str, Any] = {}
    for name, stored in (("computed", 0), ("stored, 64 dimensions", 64)):
        with tempfile.TemporaryDirectory() as folder:
            plain = SearchIndex.build(encoder, texts, Path(folder) / "plain")
            index = SearchIndex.build(encoder, texts, Path(folder) / "index", tokens=stored)
            index.search(["w1 w2"], 10, rerank=100)  # counts the tokens
            times: list[list[float]] = [[], []]
            for number in range(rounds):
                for part, rerank in enumerate((0, 100)):
                    started = time.perf_counter()
                    index.search([f"w{number} w7 w12 w90 w400"], 10, rerank=rerank)
                    times[part].append(time.perf_counter() - started)
            more = size(Path(folder) / "index", "*.arrow") - size(Path(folder) / "plain", "*.arrow")
            count = sum(len(each.ids) for each in encode_tokens(encoder, texts))
            extra = statistics.median(times[1]) - statistics.median(times[0])
            found[name] = {"milliseconds": 1000 * extra, "bytes": more / len(plain), "tokens": count / len(plain)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 100_000, 1_000_000])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    given = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when NumPy is imported
        os.environ[name] = str(given.threads)
    from cse.registry import import_methods
    from search import RANDOM

    found: dict[str, Any] = {"sizes": []}
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kind.py"
        source.write_text(RANDOM, encoding="utf8")
        import_methods(str(source))
        for rows in given.rows:
            result = latency(rows, given.width, given.rounds, Path(folder) / f"index-{rows}")
            found["sizes"].append(result)
            print(f"\n{rows:,} rows; bytes of a row: ", end="")
            print(", ".join(f"{name} {value:,.0f}" for name, value in result["bytes"].items()))
            if "smoothing_seconds" in result:
                print(f"neighbours of all rows found in {result['smoothing_seconds']:.1f} s")
            first = result["milliseconds"]["reciprocal ranks (--fusion rrf)"]
            for name, value in result["milliseconds"].items():
                print(f"{name:52} {value:8.1f} ms, {value / first:5.2f} times reciprocal ranks", flush=True)
    found["tokens"] = tokens(given.rounds)
    print()
    for name, each in found["tokens"].items():
        print(
            f"--rerank tokens, {name}: {each['milliseconds']:.0f} ms more for 100 rows of {each['tokens']:.0f} tokens",
            end="",
        )
        print(f", {each['bytes']:,.0f} bytes a row")
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
