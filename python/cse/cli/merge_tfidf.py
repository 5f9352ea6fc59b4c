"""The command ``cse merge-tfidf``."""

from __future__ import annotations

from dataclasses import asdict

import click

from ..tfidf.index import TfidfIndex
from . import options, printing


@click.command("merge-tfidf")
@click.argument("shards", nargs=-1, required=True)
@options.option("-o", "--output", default="tfidf", metavar="DIR", help="Folder of the merged index.")
@options.as_json
def command(shards: tuple[str, ...], output: str, as_json: bool) -> None:
    """Merge the indexes that cse build-tfidf wrote to the folders SHARDS, in the given order.

    The result is byte-for-byte identical to an index built from the files of all SHARDS in this order. matrix.npz is
    not written.
    """
    index = TfidfIndex.merge(shards, output)
    info = index.info
    printing.result(
        {**asdict(info), "tokenizer": index.tokenizer, "output": output, "files": [asdict(f) for f in index.files]},
        as_json,
        [
            f"{len(shards)} indexes, built from {len(index.files)} files in all: {info.documents:,} sentences, "
            f"{info.terms:,} terms",
            f"{output}/index.safetensors",
        ],
    )
