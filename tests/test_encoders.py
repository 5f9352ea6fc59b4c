"""Encoders other than transformers: word vectors on the command line, and encoders from a user's file."""

import json

import numpy as np

VECTORS = "the 1 0 0\ncat 0 1 0\ndog 0 0.5 0.5\n. 0 0 2\n"


def test_commands_accept_word_vectors_and_encoders_from_a_file(tmp_path, cse):
    (tmp_path / "v.txt").write_text(VECTORS, encoding="utf8")
    (tmp_path / "pairs.tsv").write_text("5\tthe cat\tthe cat .\n1\tthe cat\tdog .\n3\tdog\tcat\n", encoding="utf8")
    (tmp_path / "lengths.py").write_text(
        "import numpy as np\n"
        "from cse.models.encoders import ENCODERS, OtherEncoder\n"
        "class Lengths(OtherEncoder):\n"
        "    embedding_dim = 2\n"
        "    def encode(self, texts, **_):\n"
        "        return np.array([[len(text), 1] for text in texts], dtype=np.float32)\n"
        "    def files(self):\n"
        "        return []\n"
        "ENCODERS.register('lengths', Lengths)\n",
        encoding="utf8",
    )
    for name, more in (("glove:v.txt", ()), ("lengths:", ("--import", "lengths.py"))):
        done = cse("eval", name, "--data", "pairs.tsv", "--json", *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["suites"]["sts"]["tasks"][0]["pairs"] == 3
        done = cse("encode", name, "pairs.tsv.txt", "-o", "x.npy", *more, cwd=tmp_path)
        assert done.returncode == 2
        (tmp_path / "some.txt").write_text("the cat\na dog\n", encoding="utf8")
        done = cse("encode", name, "some.txt", "-o", "x.npy", *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert len(np.load(tmp_path / "x.npy")) == 2
