"""The model card of a finished run, and its upload to the Hugging Face hub (``cse push``); does not import PyTorch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InputError, first_line
from ..training.settings.config import SETTINGS
from .runs import StoredRun

if TYPE_CHECKING:
    from huggingface_hub import ModelCard

# Settings that name files, folders or the machine. Data files are replaced by the names in FILES.
PRIVATE = {"output", "name", "data", "dev", "tfidf", "cache", "device", "threads", "preset", "columns"}
FILES = {"corpus": "corpus.txt", "pairs": "pairs.csv"}


def training_command(run: StoredRun) -> str:
    """Returns the command that repeats a run: its settings as the user gave them, without the names of local files."""
    from ..models.saving.folder import public_name

    words = ["cse", "train"]
    for name, value in run.given.items():
        if isinstance(value, dict):
            words += [word for key, of in value.items() for word in ("--set", f"{name}.{key}={_plain(of)}")]
        elif name == "corpus":
            words.insert(2, FILES[name])
        elif name in SETTINGS and name not in PRIVATE:
            option = SETTINGS[name]
            values = (
                value if option.several else [FILES.get(name) or (public_name(value) if name == "model" else value)]
            )
            if option.kind is bool:
                words.append(option.flag if value else option.flag.replace("--", "--no-", 1))
            else:
                values = [FILES[name]] if name in FILES else values
                words += [word for of in values for word in (option.flag, _plain(of))]
    return shlex.join(words)


def _plain(value: Any) -> str:
    from ..training.settings.config import _without_folder

    return str(value).lower() if isinstance(value, bool) else str(_without_folder(value))


def run_card(run: StoredRun, name: str, license: str | None, language: Sequence[str], data: Sequence[str]) -> ModelCard:
    """Returns the card of ``best/`` with the metadata of the hub, how the model was trained, and its scores.

    The other arguments are those of ``cse push``. Raises ``InputError`` if the run has not finished, or has no
    ``best/README.md``.
    """
    from huggingface_hub import EvalResult, ModelCard

    path = run.folder / "best" / "README.md"
    if run.result is None or not path.is_file():
        raise InputError(f"{run.folder}: the run has not finished; finish it with cse train --resume {run.folder}")
    card: ModelCard = ModelCard.load(path)
    task: dict[str, Any] = {
        "task_type": "semantic-similarity",
        "task_name": "Semantic similarity",
        "dataset_type": "sts",
    }
    results = [
        EvalResult(**task, dataset_name=title, metric_type="spearman_cosine", metric_value=score / 100)
        for title, score in run.result["sts"].items()
    ]
    scores = {"spearman": ("development set", 0.01), "mrr": ("halves of held-out rows of the corpus", 1.0)}
    for metric, (what, scale) in scores.items():
        if metric in run.result["best"]:
            measured = {"metric_type": metric, "metric_value": scale * run.result["best"][metric]}
            results.append(EvalResult(**{**task, "dataset_type": "held-out"}, dataset_name=what, **measured))
    about = {"license": license, "language": list(language), "datasets": list(data), "eval_results": results}
    about |= {"tags": [*(getattr(card.data, "tags", None) or ()), f"loss:{run.config['loss']}"]}
    vars(card.data).update({key: value for key, value in about.items() if value}, model_name=name.rpartition("/")[2])
    facts = (run.texts or {}).get("facts", {})
    lines = [f"- {title}: {facts[key]}" for key, title in (("corpus", "Data"), ("steps", "Steps")) if key in facts]
    command = f"```sh\n{training_command(run)}\n```\n"
    section = "\n".join([command, f"- Training time: {run.result['seconds']:,.0f} s", *lines, ""])
    card.text = card.text.replace("this/folder", name).replace("## Training\n", f"## Training\n\n{section}", 1)
    return card


def push(run: StoredRun, name: str, card: ModelCard, private: bool) -> str:
    """Uploads ``best/`` with the card in one commit, creating the repository if needed; returns its address.

    Raises ``InputError`` if the hub refuses the upload, or cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import LocalTokenNotFoundError

    folder, api = run.folder / "best", HfApi()
    try:
        files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        content: dict[str, Any] = {**files, "README.md": str(card).encode()}
        added = [CommitOperationAdd(path, source) for path, source in content.items()]
        api.create_repo(name, private=private or None, exist_ok=True)
        api.create_commit(name, added, commit_message="Upload an encoder trained with cse")
    except Exception as error:  # of huggingface_hub, or of the HTTP library that its version uses
        refused = getattr(error, "response", None) is not None or isinstance(error, LocalTokenNotFoundError)
        remedy = "log in with hf auth login" if refused else "check the connection, and try again"
        raise InputError(f"{name}: not uploaded to {api.endpoint} ({first_line(error)}); {remedy}") from None
    return f"{api.endpoint}/{name}"
