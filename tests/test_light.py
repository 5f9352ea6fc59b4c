"""Tests of encoders without torch and transformers: static embeddings and ONNX files, compared with ``cse.Encoder``."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from transformers import AutoTokenizer

from cse import Encoder, InputError
from cse.encoder.light import LightEncoder, open_encoder
from cse.encoder.onnx_export import export_onnx
from cse.encoder.resolve import model_digest
from sentence_models import sentence_model
from test_modules import TEXTS, dense, layer_norm, normalize, pooling

PROMPTS = {"query": "find this : ", "document": "text : "}


@pytest.fixture(scope="module")
def static(tmp_path_factory, tiny_bert):
    torch.manual_seed(0)
    first = StaticEmbedding(AutoTokenizer.from_pretrained(tiny_bert), embedding_dim=16)
    folder = tmp_path_factory.mktemp("light") / "static"
    model = SentenceTransformer(modules=[first, Normalize()], device="cpu", prompts=PROMPTS)
    model.save(str(folder), create_model_card=False)
    return folder


def agree(name, **settings):
    light, whole = LightEncoder(name, **settings), Encoder(name, device="cpu", **settings)
    texts = [*TEXTS, " "]
    for method in ("encode", "encode_query", "encode_document"):
        np.testing.assert_allclose(getattr(light, method)(texts), getattr(whole, method)(texts), atol=1e-5)
    assert light.embedding_dim == whole.embedding_dim
    assert model_digest(light) == model_digest(whole)
    return light


def test_a_static_embedding_gives_the_vectors_of_cse_encoder(static):
    agree(str(static))
    agree(str(static), dims=5)
    agree(str(static), prompt="query")
    assert isinstance(open_encoder(static), LightEncoder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "modules", "cut"),
    [
        ("right", [pooling("mean", include_prompt=False), dense(16, torch.nn.Tanh()), normalize], None),
        ("right", [pooling("max"), normalize], 10),
        ("left", [pooling("lasttoken", "max", "cls"), layer_norm], None),
    ],
)
def test_an_onnx_file_gives_the_vectors_of_the_model(tmp_path, tiny_bert, side, modules, cut):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install 'cse[onnx]'")
    folder = tmp_path / "model"
    sentence_model(folder, tiny_bert, modules=modules, side=side, prompts=PROMPTS, truncate_dim=cut)
    export_onnx(str(folder))
    light, whole = agree(f"onnx:{folder}"), Encoder(folder, device="cpu")
    agree(f"onnx:{folder}", dims=5)
    assert cut in (None, light.embedding_dim)
    for method in ("encode", "encode_query"):
        np.testing.assert_allclose(getattr(light, method)(TEXTS), getattr(whole, method)(TEXTS), atol=1e-4)


def test_other_folders_are_refused_and_opened_by_cse_encoder(tmp_path, tiny_bert, static):
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean")])
    with pytest.raises(InputError, match=r"needs cse\.Encoder"):
        LightEncoder(tmp_path / "model")
    assert isinstance(open_encoder(tmp_path / "model", device="cpu"), Encoder)


def test_a_static_encoder_is_queried_without_torch_and_transformers(static):
    code = (
        "import sys; from cse.encoder.light import open_encoder; open_encoder(sys.argv[1]).encode_query(['a cat']); "
        "print([name for name in ('torch', 'transformers', 'sentence_transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(static)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
