"""Makes folders of models that are damaged or hostile, and opens them.

    python tests/hostile_folders.py [--sample N] [--only PATTERN]

Each folder is a small model of which one file is changed. It must load and give the vectors of the unchanged model
(finite ones for the changes in ``OTHER``), or be refused with an ``InputError`` of one sentence, within 10 s of
processor time and 1 GB, without running code or connecting to the network. Prints those that do not, and the numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer

from conftest import make_tiny
from sentence_models import sentence_model
from test_modules import dense, normalize, pooling

DEEP = "[" * 100_000 + "]" * 100_000
WHOLE = ["", "[]", "null", '"x"', "3", "{", "{}", "[{}]", DEEP, '{"a": ' + DEEP + "}", "9" * 5000, "[1e999]", "\ud800"]
NAN = float("nan")
NUMBERS = [0, -1, 2.5, "x", None, [], {}, True, 10**9, 10**30, float("inf"), NAN]
SHAPES = [3, "x", None, [], {}, [[1]], {"x": {"y": []}}, True]
PATHS = ["..", "../x", "/etc", "C:\\x", "\0", 3, None, ["x"], "~/x", "http://localhost/x", "x" * 5000]
BOMBS = ["(a+)+$", "(a*)*b", "(.*)" * 7 + "x", "(a|a)*b", "(?:a?){40}a{40}", "((((((a{9}){9}){9}){9}){9}){9})", "("]
# Values of single keys, by file; keys that are joined by a space get the same values.
KEYS: dict[str, dict[str, list[object]]] = {
    "config.json": {
        "num_hidden_layers": [*NUMBERS, 10**6, 33],
        "num_attention_heads vocab_size max_position_embeddings hidden_size type_vocab_size": [*NUMBERS, 3, 2**25],
        "pad_token_id intermediate_size chunk_size_feed_forward": [*NUMBERS, 5000],
        "layer_norm_eps hidden_dropout_prob": [-1, 2, "x", None, NAN, float("inf")],
        "hidden_act rope_parameters model_type": ["os.system", "t5", "llama", "clip", "x" * 10**6, *SHAPES],
        "architectures": [["T5EncoderModel"], ["os.system"], [3], *SHAPES],
        "auto_map": [{"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}, *SHAPES],
        "dtype attn_implementation _attn_implementation": ["int8", "torch.nn", "kernels-community/f:f", *SHAPES],
        "quantization_config": [{"quant_method": name} for name in ("bitsandbytes", "x", 3)] + SHAPES,
        "is_decoder output_hidden_states return_dict num_labels id2label": [True, False, -1, "x", {"x": 1}],
        "pruned_heads": [{"0": [0, 1, 2, 3]}, {"9": [0]}, *SHAPES],
        "gguf_file name_or_path": PATHS,
    },
    "sentence_bert_config.json": {
        "max_seq_length": [*NUMBERS, 1, 10**6],
        "do_lower_case": ["x", 3, [], True],
        "tokenizer_name_or_path": PATHS,
        "model_args config_args": [
            *({"trust_remote_code": True}, {"subfolder": "../.."}, {"gguf_file": "../x.gguf"}, {"device_map": "disk"}),
            *({"state_dict": {}}, {"config": {}}, {"variant": "../x"}, {"weights_only": False}, {"tp_plan": "auto"}),
            *({"quantization_config": {"quant_method": "x"}}, {"local_files_only": False, "revision": "x"}),
            *({"num_hidden_layers": 10**6}, {"vocab_size": 2**25}, {"attn_implementation": "x/y"}, *SHAPES),
        ],
        "tokenizer_args processor_kwargs": [{"trust_remote_code": True}, {"tokenizer_file": "/etc/passwd"}, *SHAPES],
        "transformer_task module_output_name": ["x", "fill-mask", "sentence_embedding", *SHAPES],
        "modality_config": [{"text": {"method": "__init_subclass__", "method_output_name": "x"}}, {"text": 3}, *SHAPES],
    },
    "config_sentence_transformers.json": {
        "prompts": [["a"], {"a": 3}, {"a": "x" * 10**7}, *SHAPES],
        "truncate_dim": [*NUMBERS, 33, 1],
        "similarity_fn_name model_type default_prompt_name __version__": ["os.system", "CrossEncoder", "x", *SHAPES],
        "cse_dims": ["x", [-1], [10**9], ["a"], *SHAPES],
    },
    "tokenizer_config.json": {
        "tokenizer_class": ["os.system", "T5Tokenizer", "CanineTokenizer", "x", *SHAPES],
        "auto_map": [{"AutoTokenizer": ["evil.Tokenizer", None]}, *SHAPES],
        "model_max_length": [*NUMBERS, 1],
        "padding_side truncation_side": ["left", "x", *SHAPES],
        "pad_token mask_token": ["x", {"content": "x", "__type": "AddedToken"}, {"__type": "os"}, *SHAPES],
        "added_tokens_decoder": [{"9999999999": {"content": "x"}}, {"-1": {"content": "x"}}, {"x": {}}, *SHAPES],
        "model_input_names": [["x"], [3], ["input_ids"], *SHAPES],
        "tokenizer_file vocab_file": PATHS,
        "chat_template": ["{{ ''.__class__.__mro__ }}", "{% for i in range(10**9) %}a{% endfor %}", *SHAPES],
    },
    "1_Pooling/config.json": {
        "embedding_dimension": [*NUMBERS, 33],
        "pooling_mode": ["x", "lasttoken", ["mean", "x"], ["mean"] * 10_000, *SHAPES],
        "include_prompt unknown": ["x", *SHAPES],
    },
    "2_Dense/config.json": {
        "in_features out_features": [*NUMBERS, 40_000, 33],
        "bias": [False, *SHAPES],
        "activation_function": [
            *("os.system", "torch.nn.init.os.abort", "torch.nn.Linear", "torch.nn.Module", "torch.nn."),
            *("torch.nn.parallel.DistributedDataParallel", "torch.nn.Softmax", *SHAPES),
        ],
        "module_input_name module_output_name": ["x", "token_embeddings", *SHAPES],
        "use_residual unknown": [True, *SHAPES],
    },
}
ADAPTER: dict[str, list[object]] = {
    "target_modules": ["(", "all-linear", ["x"], [], [3], ["query"] * 10**5, *SHAPES],
    "layers_to_transform": [*NUMBERS, [10**9], list(range(10**5))],
    "rank_pattern alpha_pattern": [{"(": 2}, {"query": -1}, {"query": 10**9}, {"query": "x"}, *SHAPES],
    "r lora_alpha": [*NUMBERS, 40_000],
    "modules_to_save": [["query"], ["encoder"], ["x"], *SHAPES],
    "base_model_name_or_path": [*PATHS, ".", "{folder}", "{folder}/.", "not/there"],
    "peft_type": ["x", "PROMPT_TUNING", "LOHA", "XLORA", *SHAPES],
    "auto_mapping": [{"base_model_class": "system", "parent_library": "os"}, *SHAPES],
    "init_lora_weights": ["pissa", "eva", "olora", "corda", "x", *SHAPES],
    "layer_replication": [[[0, 10**6]], [[0, 3], [1, 3]], *SHAPES],
    "use_dora use_qalora lora_bias fan_in_fan_out": [True, "x"],
    "trainable_token_indices": [[10**9], {"embed_tokens": [-1]}, *SHAPES],
    "megatron_config loftq_config unknown": [{"x": 1}, "os", "evil", *SHAPES],
}
TRANSFORMER = "sentence_transformers.models.Transformer"
INNER = "X Router BoW WordEmbeddings StaticEmbedding CLIPModel Normalize Pooling Dense LSTM CNN WeightedLayerPooling"
MODULE_TYPES = [f"sentence_transformers.models.{kind}" for kind in (*INNER.split(" "), "a." * 10_000 + "b", "\ud800")]
MODULE_TYPES += [
    f"sentence_transformers.{kind}" for kind in ("", "SentenceTransformer", "util.http_get", "util.import_from_string")
]
MODULES: list[object] = [[{"idx": 0, "name": "0", "path": path, "type": TRANSFORMER}] for path in PATHS] + [
    [{"idx": 0, "name": "0", "path": "", "type": kind}] for kind in (*MODULE_TYPES, "os.system", "evil.Model", 3, None)
]
JSON_FILES = [*KEYS, "modules.json", "tokenizer.json", "adapter_config.json", "model.safetensors.index.json"]


# Names of the changes with which a folder is another model, whose vectors may differ, with the reason.
OTHER = {
    r"config.json (layer_norm_eps|is_decoder) ": "another function of the layers",
    r"(sentence_bert_config.json max_seq_length|tokenizer_config.json model_max_length) ": "texts are cut elsewhere",
    r"tokenizer_config.json(: {}| (padding|truncation)_side left)$": "texts are cut or padded elsewhere",
    r"tokenizer.json no truncation$": "texts are cut elsewhere",
    r"tokenizer.json (two words|replacement|split )": "other words",
    r"config_sentence_transformers.json truncate_dim 1$": "fewer dimensions",
    r"modules.json (\[|transformers)": "other modules",
    r"1_Pooling/config.json pooling_mode ": "another pooling",
    r"2_Dense/config.json (activation_function|bias) ": "another function of the last layer",
    r"adapter init_lora_weights (pissa|olora)$": "peft changes the weights of the base model",
    r"adapter (lora_alpha|alpha_pattern|layers_to_transform) ": "another weight of the adapter, or fewer layers",
}
# Folders that once ran out of memory or time, or ended in a traceback; each sample has them all.
FAULTS = (
    r"(pipe|endless|300 MB|100,000 times|of no token"
    r"|split \(a\+\)\+\$|added token)$"
    r"|adapter lora_alpha nan|max_seq_length 1$|stride$"
    r"|Dense.*module_input_name|rare word$"
)


class Slow(BaseException):
    """A folder took longer than ``SECONDS``."""


SECONDS, BYTES = 10, 10**9
TEXTS = ["A sentence of a few words.", "", "a" * 60 + "!", "x " * 200]
Change = Callable[[Path], object]


class Evil:
    """An object whose pickle creates a file when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (os.environ["CSE_EVIL"],)


def changes() -> Iterator[tuple[str, Change]]:
    """Yields the name of each hostile folder, and a function that makes it of a copy of the model."""
    for file, table in KEYS.items():
        for keys, values in table.items():
            for key in keys.split():
                yield from ((f"{file} {key} {_short(value)}", _key(file, key, value)) for value in values)
                yield f"{file} {key} missing", _key(file, key)
    for file in JSON_FILES:
        yield from ((f"{file}: {_short(text)}", _whole(file, text)) for text in WHOLE)
        yield f"{file} of 300 MB", _large(file)
        yield f"{file} is a folder", _special(file, lambda path: path.mkdir())
        yield f"{file} is a pipe", _special(file, os.mkfifo)
        yield f"{file} is endless", _special(file, lambda path: path.symlink_to("/dev/zero"))
    yield from ((f"modules.json {_short(value)}", _whole("modules.json", json.dumps(value))) for value in MODULES)
    yield "modules.json 100,000 times", _modules(lambda listed: [*listed[:2], *listed[3:] * 100_000])
    yield "modules.json transformers", _modules(lambda listed: listed[:1] * 3)
    yield "modules.json pooling first", _modules(lambda listed: listed[::-1])
    yield (
        "modules.json no names",
        _modules(lambda listed: [{"type": each["type"], "path": each["path"]} for each in listed]),
    )
    for keys, values in ADAPTER.items():
        for key, value in product(keys.split(), values):
            yield f"adapter {key} {_short(value)}", _adapter(key, value)
    yield from ((f"tokenizer.json {name}", _tokenizer(*change)) for name, change in TOKENIZERS.items())
    for name, weight_map in INDEXES.items():
        yield f"index {name}", _index(weight_map)
    for part in ("", "2_Dense"):
        tensor = b'linear.weight"   ' if part else b'embedding.weight"'
        for name, content in HEADERS.items():
            yield f"{part} weights {name}", _weights(part, content.replace(b'embedding.weight"', tensor))
        yield f"{part} pickle", _pickle(part, Evil())
        yield f"{part} pickle in a zip file", _pickle(part, Evil(), "zip")
        yield f"{part} compressed zip file", _pickle(part, {}, "bomb")
        yield f"{part} text", _pickle(part, {}, "text")
    yield "code beside the model", _code


def _short(value: object) -> str:
    text = value if isinstance(value, str) else "nan" if value != value else json.dumps(value)
    return text.encode("unicode_escape").decode()[:40]


def _key(file: str, key: str, *value: object) -> Change:
    def change(folder: Path) -> None:
        found = _read(folder / file)
        found.pop(key, None)
        (folder / file).write_text(json.dumps({**found, **({key: value[0]} if value else {})}))
        _code(folder)

    return change


def _whole(file: str, text: str) -> Change:
    return lambda folder: (folder / file).write_bytes(text.encode("utf8", "surrogatepass"))


def _large(file: str) -> Change:
    def change(folder: Path) -> None:
        with open(folder / file, "wb") as stream:
            stream.write(b'{"a": [' if file != "modules.json" else b"[[")
            for _ in range(30):
                stream.write(b"0," * 5_000_000)
            stream.write(b"0]}" if file != "modules.json" else b"0]]")

    return change


def _special(file: str, make: Callable[[Path], object]) -> Change:
    def change(folder: Path) -> None:
        (folder / file).unlink(missing_ok=True)
        make(folder / file)

    return change


def _modules(change: Callable[[list[dict[str, str]]], object]) -> Change:
    return lambda folder: (folder / "modules.json").write_text(json.dumps(change(_read(folder / "modules.json"))))


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _adapter(key: str, value: object) -> Change:
    """The folder becomes an adapter of a copy of the model."""

    def change(folder: Path) -> None:
        from safetensors.numpy import save_file

        base = folder / "base"
        base.mkdir()
        for name in ("config.json", "model.safetensors"):
            (folder / name).rename(base / name)
        for path in folder.glob("tokenizer*"):
            shutil.copy(path, base)
        for path in (folder / "modules.json", *folder.glob("*sentence*")):
            path.unlink()
        text = value.replace("{folder}", str(folder)) if isinstance(value, str) else value
        settings = {"peft_type": "LORA", "r": 2, "target_modules": ["query"], "base_model_name_or_path": str(base)}
        (folder / "adapter_config.json").write_text(json.dumps({**settings, key: text}))
        names = [f"base_model.model.encoder.layer.{n}.attention.self.query.lora_" for n in range(3)]
        draw = np.random.default_rng(0)
        shapes = {f"{name}{end}.weight": shape for name in names for end, shape in (("A", (2, 32)), ("B", (32, 2)))}
        weights = {name: draw.standard_normal(shape, "f4") for name, shape in shapes.items()}
        save_file(weights, folder / "adapter_model.safetensors")

    return change


def _tokenizer(place: str, *values: object) -> Change:
    def changed(folder: Path) -> None:
        found = _read(folder / "tokenizer.json")
        *keys, last = place.split(".")
        target = reduce(dict.__getitem__, keys, found)
        target[last] = [*target[last], *values] if isinstance(target.get(last), list) else values[0]
        (folder / "tokenizer.json").write_text(json.dumps(found))

    return changed


PADDING = {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]", "pad_to_multiple_of": None}
TRUNCATION = {"direction": "Right", "strategy": "LongestFirst", "stride": 0}
ADDED = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"content": "new", "special": True}
CLS = "post_processor.special_tokens.[CLS]"


def _nested(depth: int) -> dict[str, object]:
    found: dict[str, object] = {"type": "Lowercase"}
    for _ in range(depth):
        found = {"type": "Sequence", "normalizers": [found]}
    return found


# The place of a value in tokenizer.json, and the value; at the place of a list, values are appended.
TOKENIZERS: dict[str, tuple[Any, ...]] = {
    "no vocabulary": ("model.vocab", {}),
    "large number": ("model.vocab.a", 2**31),
    "large number of a rare word": ("model.vocab.sentence", 10**6),
    "negative number": ("model.vocab.a", -1),
    "two words of one number": ("model.vocab.a", 5),
    "no unknown token": ("model.unk_token", "?"),
    "Unigram": ("model", {"type": "Unigram", "vocab": [], "unk_id": 10**9}),
    "BPE": ("model", {"type": "BPE", "vocab": {"a": 0}, "merges": [["x", "y"]]}),
    "long words": ("model.max_input_chars_per_word", 10**12),
    "fixed padding": ("padding", {**PADDING, "strategy": {"Fixed": 10**9}}),
    "padding to a multiple": ("padding", {**PADDING, "strategy": "BatchLongest", "pad_to_multiple_of": 10**9}),
    "no truncation": ("truncation", {**TRUNCATION, "max_length": 0}),
    "stride": ("truncation", {**TRUNCATION, "max_length": 5, "stride": 10**9}),
    "added token of a large number": ("added_tokens", {**ADDED, "id": 2**31}),
    "added token": ("added_tokens", {**ADDED, "id": 0, "content": "sentence"}),
    "many added tokens": ("added_tokens", *({**ADDED, "id": n, "content": f"t{n}"} for n in range(20_000))),
    "template of a large number": (CLS, {"id": "[CLS]", "ids": [10**6], "tokens": ["[CLS]"]}),
    "long template": (CLS, {"id": "[CLS]", "ids": [2] * 10**6, "tokens": ["[CLS]"] * 10**6}),
    "template of no token": ("post_processor.special_tokens", {}),
    "replacement": ("normalizer", {"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": ""}),
    "Precompiled": ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "deeper normalizer": ("normalizer", _nested(400)),
}
for _bomb in BOMBS:
    _regex = {"pattern": {"Regex": _bomb}, "behavior": "Isolated", "invert": False}
    TOKENIZERS[f"split {_bomb[:20]}"] = ("pre_tokenizer", {"type": "Split", **_regex})


INDEXES: dict[str, object] = {
    "above": {"a": "../../other.safetensors"},
    "absolute": {"a": "/etc/passwd"},
    "missing": {"a": "model-00001-of-00002.safetensors"},
    "itself": {"a": "model.safetensors.index.json"},
    "a pickle": {"a": "pytorch_model.bin"},
    "a million": {str(number): "model-00001-of-00001.safetensors" for number in range(10**6)},
    "100,000 files": {str(number): f"model-{number}.safetensors" for number in range(10**5)},
}


def _index(weight_map: object) -> Change:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
        index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return change


def _header(value: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _tensor(dtype: str = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"embedding.weight": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


HEADERS: dict[str, bytes] = {
    "empty": b"",
    "huge header": struct.pack("<Q", 2**63) + b"{}",
    "header longer than the file": _header({}, length=10**8),
    "no tensor": _header({}),
    "deep": _header(DEEP.encode()),
    "not UTF-8": _header(b"\xff\xfe"),
    "long number": _header(b'{"a": ' + b"9" * 5000 + b"}"),
    "negative shape": _header(_tensor(shape=[-1]), bytes(4)),
    "huge shape": _header(_tensor(shape=[2**62, 2**62]), bytes(4)),
    "many dimensions": _header(_tensor(shape=[1] * 100_000), bytes(4)),
    "offsets beyond the end": _header(_tensor(shape=[2**20], offsets=[0, 2**22]), bytes(4)),
    "reversed offsets": _header(_tensor(offsets=[4, 0]), bytes(4)),
    "one weight": _header(_tensor(), bytes(4)),
    "int8": _header(_tensor("I8", [4]), bytes(4)),
    "no elements": _header(_tensor(shape=[0], offsets=[0, 0])),
    "100,000 tensors": _header({str(n): {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in range(10**5)}),
    "metadata": _header({"__metadata__": {"format": "os.system"}, **_tensor()}, bytes(4)),
    "LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
}


def _weights(part: str, content: bytes) -> Change:
    return lambda folder: (folder / part / "model.safetensors").write_bytes(content)


def _pickle(part: str, value: object, form: str = "") -> Change:
    def change(folder: Path) -> None:
        (folder / part / "model.safetensors").unlink()
        path = folder / part / "pytorch_model.bin"
        if form == "text":
            path.write_text("no weights")
        elif form:
            kind = zipfile.ZIP_DEFLATED if form == "bomb" else zipfile.ZIP_STORED
            with zipfile.ZipFile(path, "w", kind) as archive:
                archive.writestr("archive/data.pkl", pickle.dumps(value, 2))
                archive.writestr("archive/version", "3\n")
                if form == "bomb":
                    with archive.open("archive/data/0", "w", force_zip64=True) as entry:
                        for _ in range(20):
                            entry.write(bytes(10**8))
        else:
            path.write_bytes(pickle.dumps(value, 2))

    return change


def _code(folder: Path) -> None:
    text = f"import os\nos.mkdir({os.environ['CSE_EVIL']!r})\n"
    for name in ("evil.py", "modeling_bert.py", "conftest.py", "__init__.py", "custom_generate/generate.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def vectors_of(folder: Path) -> np.ndarray:
    """Returns the vectors of ``TEXTS`` by the encoder in a folder."""
    from cse.encoder.opening import open_encoder

    return open_encoder(str(folder)).encode(TEXTS)


def opened(folder: Path, expected: np.ndarray | None) -> str:
    """Opens a folder as training and as search do; returns "loaded" or "refused", or raises what is wrong."""
    from cse import InputError
    from cse.encoder.opening import open_encoder
    from cse.encoder.resolve import find_model

    outcomes, opening = set(), True
    for open_it in (find_model, open_encoder):
        try:
            encoder = open_it(str(folder))
            outcomes.add("loaded")
            if open_it is open_encoder:
                opening = False
                vectors = encoder.encode(TEXTS)
                assert vectors.shape == (len(TEXTS), encoder.embedding_dim), f"vectors {vectors.shape}"
                assert np.isfinite(vectors).all(), "vectors that are not finite"
                if expected is not None:
                    assert vectors.shape == expected.shape, "vectors of another width"
                    assert np.allclose(vectors, expected, atol=1e-5), "other vectors"
        except InputError as error:
            text = str(error)
            outcomes.add("refused")
            assert not opening or str(folder) in text, f"does not name the folder: {text}"
            assert len(text) < 700, f"{len(text)} characters: {text[:300]!r}"
            assert not re.search("\n|site-packages|Traceback", text), text[:700]
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {str(error)[:200]!r}") from error
    return "refused" if "refused" in outcomes else "loaded"


def memory(name: str = "VmHWM") -> int:
    """Returns a size of this process in bytes; by default, its largest memory since ``reset_peak``."""
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


def reset_peak() -> int:
    """Sets the largest memory to that in use, where the kernel allows it; returns it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return memory()


def trial(folder: Path, change: Change, expected: np.ndarray | None) -> tuple[str, str]:
    """Makes a folder hostile and opens it; returns the outcome and what is wrong, "" if nothing is."""
    evil = Path(os.environ["CSE_EVIL"])
    change(folder)
    before, started = reset_peak(), time.process_time()
    outcome, wrong = "failed", ""
    signal.signal(signal.SIGALRM, _slow)
    signal.alarm(6 * SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = opened(folder, expected)
    except AssertionError as error:
        wrong = str(error)
    except Slow:
        wrong = "does not end"
    finally:
        signal.alarm(0)
    seconds, used = time.process_time() - started, memory() - before
    if seconds > SECONDS:
        wrong = wrong or f"{seconds:.0f} s"
    if used > BYTES:
        wrong = wrong or f"{used / 1e9:.1f} GB"
    if evil.exists():
        evil.rmdir()
        wrong = "ran code"
    return outcome, wrong


def _slow(*_: object) -> None:
    raise Slow


def _unreachable(*_: object, **__: object) -> None:
    raise AssertionError("connected to the network")


def trials(
    base: Path, sample: int | None = None, only: str = "", seed: int = 0
) -> Iterator[tuple[str, str, str, float]]:
    """Yields the name, the outcome, the fault ("" if there is none) and the seconds of each trial in a folder."""
    os.environ["RUST_BACKTRACE"] = "0"
    os.environ["CSE_EVIL"] = str(base / "code-was-run")
    (base / "tiny").mkdir()
    sentence_model(base / "model", make_tiny(base / "tiny", "bert"), modules=[pooling("mean"), dense(16), normalize])
    static = StaticEmbedding(Tokenizer.from_file(str(base / "tiny" / "tokenizer.json")), embedding_dim=32)
    SentenceTransformer(modules=[static, normalize(32)], device="cpu").save(str(base / "static"))
    listed = [each for each in changes() if re.search(only, each[0])]
    if sample is not None:
        faults = [each for each in listed if re.search(FAULTS, each[0])]
        others = [each for each in listed if not re.search(FAULTS, each[0])]
        listed = [*faults, *random.Random(seed).sample(others, min(sample, len(others)))]
    shutil.copytree(base / "model", base / "adapter")
    _adapter("r", 2)(base / "adapter")
    unchanged = {model: vectors_of(base / model) for model in ("model", "static", "adapter")}
    models = {"model": "", "static": "^(modules|tokenizer|config_sentence_transformers).json|^ weights"}
    connect, socket.socket.connect = socket.socket.connect, _unreachable  # type: ignore[method-assign]
    # An endless file must not fill the memory of the machine.
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (memory("VmSize") + 4 * BYTES, limits[1]))
    try:
        for model, (name, change) in product(models, listed):
            if not re.search(models[model], name):
                continue
            folder = base / "copy"
            shutil.copytree(base / model, folder)
            started = time.monotonic()
            other = any(re.match(pattern, name) for pattern in OTHER)
            expected = unchanged["adapter" if name.startswith("adapter ") else model]
            outcome, wrong = trial(folder, change, None if other else expected)
            yield f"{model} {name}", outcome, wrong, time.monotonic() - started
            shutil.rmtree(folder)
    finally:
        socket.socket.connect = connect  # type: ignore[method-assign]
        resource.setrlimit(resource.RLIMIT_AS, limits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="number of folders beside those of FAULTS; default: all")
    parser.add_argument("--only", default="", help="only names that match a regular expression")
    parser.add_argument("--times", action="store_true", help="print the slowest folders")
    options = parser.parse_args()
    counts = dict.fromkeys(("loaded", "refused", "failed"), 0)
    times = []
    with tempfile.TemporaryDirectory() as name:
        for trial_name, outcome, wrong, seconds in trials(Path(name), options.sample, options.only):
            counts["failed" if wrong else outcome] += 1
            times.append((seconds, trial_name))
            if wrong:
                print(f"{trial_name}\n    {wrong[:300]}", flush=True)
    for seconds, trial_name in sorted(times, reverse=True)[: 20 if options.times else 0]:
        print(f"{seconds:6.1f} s {trial_name}")
    print(f"tried {sum(counts.values())}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    sys.exit(counts["failed"] > 0)


if __name__ == "__main__":
    main()
