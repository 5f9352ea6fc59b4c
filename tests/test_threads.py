"""Tests that an encoder gives equal vectors and passages to threads that use it at the same time."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from cse import Encoder
from cse.encoder.passages import Cutter
from sentence_models import sentence_model
from test_modules import normalize, pooling

THREADS = 8


def test_eight_threads_get_the_vectors_and_passages_of_one(tmp_path, tiny_bert, short_rows):
    prompts = {"query": "a question in several words : ", "document": "text : "}
    sentence_model(tmp_path / "model", tiny_bert, modules=[pooling("mean"), normalize], prompts=prompts)
    encoder = Encoder(tmp_path / "model", device="cpu")
    cut = Cutter(encoder, 8)
    texts = [*short_rows[:20], " ".join(short_rows[:20]), "word"]

    def work(number):
        text = texts[number % len(texts)]
        kind = number % 4
        if kind == 0:
            return encoder.encode_query([text])
        if kind == 1:
            return encoder.encode_document([text])
        return encoder.encode([text, "word"]) if kind == 2 else cut([text])

    numbers = range(44 * THREADS)
    expected = {number: work(number) for number in range(44)}
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(work, numbers))
    for number, result in zip(numbers, results, strict=True):
        if number % 4 == 3:
            assert result == expected[number % 44]
        else:
            np.testing.assert_allclose(result, expected[number % 44], atol=1e-6)
