"""Measures exact search (time and memory) and the nDCG@10 of rankings.

    python benches/search.py [--rows 1000000] [--threads 2] [--rounds 5] [--json FILE]
    python benches/search.py --data DIR    # adds nDCG@10 and recall@100 of MiniLM on a set in BEIR's format

Vectors are random, of unit length, and texts random words. The nearest rows of 20 queries must equal those of a brute-
force search in float64. Exact search is compared with NumPy: both are timed alternately in one process, and their times
are medians over the rounds. The goals are:

- one query: at most 1.3 times the time of ``numpy.argpartition(vectors @ query)``;
- 1,000 queries: at most 1.5 times the time of the matrix product alone, computed in blocks that are not kept;
- one query of a finished index, with opening it: at most 10 s;
- memory: at most 500 MB more than the size of the index.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

K = 10
WORDS = 10_000
"""Texts are 20 random words out of so many, and queries are 5 or 6."""
LOADED = "from cse import Encoder; Encoder('random:2', device='cpu')"

# Defines an encoder that returns random vectors, so that building a large index takes seconds. The encoder also loads
# minilm, if that is installed, so that the measured memory includes a model.
RANDOM = """
import zlib
import numpy as np
from cse.encoder.other import ENCODERS, OtherEncoder

class Random(OtherEncoder):
    summary = "random vectors that depend on the text"

    def __init__(self, what, device):
        super().__init__(what, device)
        from cse import Encoder
        try:
            self.model = Encoder("minilm", device="cpu")
            self.model.encode(["a sentence"])
        except ValueError:
            pass

    @property
    def embedding_dim(self):
        return int(self.what)

    def encode(self, texts, **_):
        seed = zlib.crc32("\\n".join(texts).encode())
        return np.random.default_rng(seed).standard_normal((len(texts), self.embedding_dim), dtype=np.float32)

    def files(self):
        return []

ENCODERS.register("random", Random)
"""


def in_turns(rounds: int, **sides: Callable[[], object]) -> dict[str, float]:
    """Runs the sides alternately; returns the median seconds of each, omitting the first of ``rounds + 1`` rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, work in sides.items():
            started = time.perf_counter()
            work()
            if number:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(found) for name, found in seconds.items()}


def exact(vectors: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.int64]:
    """Returns the k rows with the largest products in float64; rows with equal products are in ascending order."""
    import numpy as np

    scores = np.empty((len(queries), 0))
    rows = np.empty((len(queries), 0), dtype=np.int64)
    for start in range(0, len(vectors), 1 << 16):
        block = vectors[start : start + (1 << 16)].astype(np.float64)
        scores = np.hstack([scores, queries.astype(np.float64) @ block.T])
        rows = np.hstack([rows, np.broadcast_to(np.arange(start, start + len(block)), (len(queries), len(block)))])
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        scores, rows = np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)
    return rows


class Asked:
    """Stands for an encoder: returns the vector of the number with which a query begins, so that only the search is
    measured."""

    tokenizer = None

    def __init__(self, queries: npt.NDArray[np.float32]) -> None:
        self.queries = queries

    def encode_query(self, texts: list[str], **_: Any) -> npt.NDArray[np.float32]:
        return self.queries[[int(text.split()[0]) for text in texts]]


def search(folder: Path, width: int, rounds: int) -> dict[str, Any]:
    """Times the search in an index folder, and the NumPy operations with which it is compared."""
    import numpy as np

    from cse import SearchIndex
    from cse.search.index import QUERIES
    from cse.search.storage import opened, scaled

    opening = in_turns(rounds, checked=lambda: opened(folder), plain=lambda: opened(folder, check=False))
    stored = opened(folder)
    queries = scaled(np.random.default_rng(1).standard_normal((1000, width)), {"similarity": "cosine"})
    encoder: Any = Asked(queries)
    index = SearchIndex(folder, stored, encoder)
    words = np.random.default_rng(2).integers(WORDS, size=(len(queries), 5))
    asked = [" ".join(map(str, [number, *row])) for number, row in enumerate(words)]
    vectors = np.concatenate(index.vectors)
    found_rows = [[hit.row for hit in hits] for hits in index.search(asked[:20], K)]
    assert found_rows == exact(vectors, queries[:20], K).tolist()
    print(f"for 20 queries, the {K} nearest of {len(vectors):,} rows equal those of a brute-force search in float64")

    def product() -> None:
        for start in range(0, len(queries), QUERIES):
            for array in index.vectors:
                queries[start : start + QUERIES] @ array.T

    one = in_turns(
        3 * rounds,
        ours=lambda: index.search(asked[:1], K),
        numpy=lambda: np.argpartition(vectors @ queries[0], -K)[-K:],
    )
    index.prepare(hybrid=True)
    both = in_turns(
        3 * rounds,
        vectors=lambda: index.search(asked[:1], K),
        hybrid=lambda: index.search(asked[:1], K, hybrid=True),
    )
    many = in_turns(rounds, ours=lambda: index.search(asked, K), product=product)
    found = {
        "opening": opening,
        "one_query": {**one, "ratio": one["ours"] / one["numpy"]},
        "rankings": both,
        "thousand_queries": {**many, "ratio": many["ours"] / many["product"]},
    }
    print(
        f"one query:     {1000 * one['ours']:.0f} ms, argpartition(vectors @ query) {1000 * one['numpy']:.0f} ms: ",
        end="",
    )
    print(f"{found['one_query']['ratio']:.2f} times (goal 1.3)")
    print(f"one query with --hybrid: {1000 * both['hybrid']:.0f} ms, without {1000 * both['vectors']:.0f} ms")
    print(f"1,000 queries: {many['ours']:.2f} s, the product alone {many['product']:.2f} s: ", end="")
    print(f"{found['thousand_queries']['ratio']:.2f} times (goal 1.5)")
    print(f"opening the index: {opening['checked']:.2f} s; without the checksum {opening['plain']:.2f} s")
    return found


# Does what cse search does once the queries are encoded, without importing PyTorch or loading a model.
ONLY_SEARCH = """
import sys
from pathlib import Path
import numpy as np
from cse import SearchIndex
from cse.search.storage import opened
class Asked:
    def encode_query(self, texts, **_):
        return np.random.default_rng(1).standard_normal((len(texts), index.shape[1]))
index = SearchIndex(Path(sys.argv[1]), opened(Path(sys.argv[1])), Asked())
index.search(["query"] * 1000)
assert "torch" not in sys.modules
"""


# Prints the peak memory of a process. On Linux, ru_maxrss would include the peak of the parent process.
PEAK = """
import atexit, resource, sys
def tell():
    try:
        lines = open("/proc/self/status").read().splitlines()
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"\\n{peak}", file=sys.stderr)
atexit.register(tell)
"""


def peak_of(code: str, *arguments: str) -> float:
    """Returns the peak memory of a Python process in MB, including the pages of mapped files that it has read."""
    done = subprocess.run([sys.executable, "-c", PEAK + code, *arguments], capture_output=True, text=True, check=True)
    return int(done.stderr.splitlines()[-1]) / 1e6


def memory(folder: Path, source: Path, width: int) -> dict[str, float]:
    """Returns the size of the index and the peak memory of three processes, in MB.

    One process searches for 1,000 queries without a model, one only loads a model, and one runs ``cse search``.
    """
    queries = folder.with_name("queries.txt")
    queries.write_text("".join(f"query {number}\n" for number in range(1000)), encoding="utf8")
    command = [
        "search",
        f"random:{width}",
        "-o",
        str(folder),
        "--queries",
        str(queries),
        "--import",
        str(source),
        "--json",
    ]
    code = "import sys; sys.argv = ['cse', *sys.argv[1:]]; from cse.cli import main; main()"
    size = sum(path.stat().st_size for path in folder.glob("*.arrow")) / 1e6
    alone = peak_of(ONLY_SEARCH, str(folder))
    print(f"memory of a search for 1,000 queries: {alone:,.0f} MB, {alone - size:,.0f} MB above the index (goal 500)")
    loaded = peak_of(f"from cse.registry import import_methods; import_methods({str(source)!r})\n{LOADED}")
    whole = peak_of(code, *command)
    print(f"memory of cse search: {whole:,.0f} MB, {whole - loaded - size:,.0f} MB above the index and ", end="")
    print(f"the {loaded:,.0f} MB of PyTorch and a model")
    return {"file_mb": size, "search_mb": alone, "model_mb": loaded, "command_mb": whole}


def quality(data: str) -> dict[str, tuple[float, float]]:
    """Returns nDCG@10 and recall@100, x 100, of the rankings by MiniLM on a retrieval set."""
    from cse import Encoder, SearchIndex
    from cse.evaluation.options import RetrievalOptions
    from cse.evaluation.retrieval import Retrieval, ndcg

    task = Retrieval(RetrievalOptions(), data)
    encoder = Encoder("minilm", device="cpu")
    ids, texts = list(task.documents), list(task.documents.values())
    index = SearchIndex.build(encoder, texts, ids=ids)
    rankings: dict[str, tuple[SearchIndex, dict[str, Any]]] = {
        "vectors alone": (index, {}),
        "--hybrid": (index, {"hybrid": True}),
    }
    found = {}
    for name, (used, settings) in rankings.items():
        results = used.search(task.queries.values(), 100, **settings)
        judged = list(zip(results, task.judgements.values(), strict=True))
        gains = [ndcg([hit.id for hit in hits[:10]], relevant) for hits, relevant in judged]
        wanted = [{name for name, value in relevant.items() if value > 0} for _, relevant in judged]
        recalls = [
            len(each.intersection(hit.id for hit in hits)) / len(each)
            for (hits, _), each in zip(judged, wanted, strict=True)
        ]
        found[name] = 100 * statistics.fmean(gains), 100 * statistics.fmean(recalls)
        print(f"{data}, {name}: nDCG@10 {found[name][0]:.2f}, recall@100 {found[name][1]:.2f}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", nargs="*", default=[], help="folders with corpus, queries and qrels")
    parser.add_argument("--json")
    given = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):  # read when NumPy is imported
        os.environ[name] = str(given.threads)

    found: dict[str, Any] = {"rows": given.rows, "width": given.width, "threads": given.threads}
    if given.rows:
        with tempfile.TemporaryDirectory() as folder:
            source, index = Path(folder) / "kind.py", Path(folder) / "index"
            source.write_text(RANDOM, encoding="utf8")
            from cse import Encoder, SearchIndex
            from cse.registry import import_methods

            import_methods(str(source))
            encoder = Encoder(f"random:{given.width}", device="cpu")
            import numpy as np

            drawn = np.random.default_rng(0).integers(WORDS, size=(given.rows, 20))
            texts = [" ".join(map(str, row)) for row in drawn.tolist()]
            seconds = {}
            for name, rows in (("build", texts), ("add a row", [*texts, "a new row"]), ("remove a row", texts)):
                started = time.perf_counter()
                SearchIndex.build(encoder, rows, index)
                seconds[name] = time.perf_counter() - started
                print(f"{given.rows:,} rows without a transformer: {name} in {seconds[name]:.1f} s", flush=True)
            found["changes"] = seconds
            found["search"] = search(index, given.width, given.rounds)
            found["memory"] = memory(index, source, given.width)
    for data in given.data:
        found.setdefault("quality", {})[data] = quality(data)
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
