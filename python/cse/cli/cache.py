"""The command ``cse cache``."""

from __future__ import annotations

import click

from . import options, printing


@click.command("cache")
@options.option("--cache", metavar="DIR", help="The cache folder.", default_text="$CSE_CACHE, else the user's cache")
@options.option("--clear", is_flag=True, help="Delete all entries.")
@options.as_json
def command(cache: str | None, clear: bool, as_json: bool) -> None:
    """List the cached rows and token ids of corpora, or delete them.

    The first run on a large corpus writes its rows and token ids to the cache. Later runs use these files, and start
    sooner. The files are mapped into memory, so that memory use does not grow with the corpus.
    """
    from ..data import cache as store

    folder = store.cache_folder(cache)
    if clear:
        count, size = store.clear(folder)
        found = {"folder": str(folder), "deleted": count, "bytes": size}
        printing.result(found, as_json, [f"{folder}: {count} entries deleted, {size / 1e6:,.1f} MB"])
        return
    listed = [
        {
            "name": entry.folder.name,
            "kind": entry.kind,
            "rows": entry.meta.get("rows"),  # None for a damaged entry
            "bytes": entry.bytes,
            "files": entry.meta.get("paths", []),
        }
        for entry in store.entries(folder)
    ]
    total = sum(entry["bytes"] for entry in listed)
    lines = [
        f"{entry['name']}: {'damaged' if entry['rows'] is None else format(entry['rows'], ',') + ' rows'}, "
        f"{entry['bytes'] / 1e6:,.1f} MB, {', '.join(entry['files'])}"
        for entry in listed
    ]
    printing.result(
        {"folder": str(folder), "bytes": total, "entries": listed},
        as_json,
        [*lines, f"{folder}: {len(listed)} entries, {total / 1e6:,.1f} MB"],
    )
