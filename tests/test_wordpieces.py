"""Pieces of WordPiece tokenizers: as terms of TF-IDF, UNA and BM25, and of the words that `cse doctor` counts."""

import json
import pickle
import shutil
import sys
from collections import Counter
from itertools import chain, pairwise, product
from types import SimpleNamespace
from unicodedata import category

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from commands import refuses
from cse import Encoder, SearchIndex, TfidfIndex, train
from cse.encoder.resolve import find_model
from cse.encoder.trained import load_tokenizer
from cse.encoder.vocabulary import MIN_COUNT, count_words
from cse.search.fusion import Fusion
from cse.tfidf.pieces import Pieces
from cse.training.loop import resumed_config
from runs import same_run
from test_cli import ran, refused
from test_resume import Stop
from una_reference import ReferenceIndex

# Sentences of three languages, separated by | or by lines.
JOINED = {
    "zh": """三个人在公园里下棋。|一个男人在拉大提琴。|两只狗在雪地里奔跑,一只猫在看着。|孩子们在海边玩沙子。
她正在厨房里切洋葱和胡萝卜。|火车将在下午五点到达北京站。|股市今天下跌了3.5%。|老师给学生们讲了一个故事。
他买了一台新的MacBook电脑。|飞机在大雨中安全降落。""",
    "ja": """三人の男が公園でチェスをしている。|女性がキッチンで玉ねぎを切っています。|犬が雪の中を走っている。
子供たちは海岸で砂遊びをしていました。|電車は午後五時に東京駅に到着します。|株価は今日3.5%下がった。
先生が生徒に物語を話している。|彼は新しいコンピューターを買いました。|飛行機は大雨の中で無事に着陸した。
猫が窓のそばで眠っています。""",
    "de": """Drei Männer spielen im Park Schach.|Eine Frau schneidet in der Küche Zwiebeln.
Der Bundesverfassungsgerichtshof tagt heute.|Zwei Hunde laufen durch den Schnee.
Die Kinder spielen am Strand im Sand.|Der Zug kommt um fünf Uhr in München an.
Die Aktienkurse fielen heute um 3,5 %.|Der Lehrer erzählt den Schülern eine Geschichte.
Er kaufte einen neuen Computer für die Universität.|Das Flugzeug landete im Gewitterregen sicher.""",
}
SENTENCES = {language: text.replace("\n", "|").split("|") for language, text in JOINED.items()}
GERMAN = SENTENCES["de"]


def rows_of(language):
    """Returns 110 rows: the sentences, alone and in pairs."""
    sentences = SENTENCES[language]
    joint = " " if language == "de" else ""
    return [*sentences, *(joint.join(pair) for pair in product(sentences, sentences))]


def bert(vocabulary, **changes):
    tokenizer = Tokenizer(models.WordPiece({piece: n for n, piece in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**{"lowercase": False, **changes})
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    """A tokenizer with the letters of the sentences, their frequent words, and frequent parts of words."""
    empty, rows = bert([]), " ".join(chain(*SENTENCES.values()))
    words = [word for word, _ in empty.pre_tokenizer.pre_tokenize_str(empty.normalizer.normalize_str(rows))]
    words = Counter(words)
    letters = sorted(set("".join(words)))
    places = ((word, start, length) for word in words for start in range(len(word)) for length in (2, 3, 4))
    parts = Counter(("##" if start else "") + word[start : start + length] for word, start, length in places)
    frequent = [part for part, count in sorted(parts.items()) if count > 1]
    whole = [word for n, word in enumerate(sorted(words)) if n % 2]
    found = bert(dict.fromkeys(["[UNK]", "[CLS]", *letters, *("##" + each for each in letters), *frequent, *whole]))
    found.add_special_tokens(["[CLS]"])
    return found


@pytest.fixture(scope="module")
def pieces(tokenizer):
    return Pieces.of(tokenizer, "test")


@pytest.fixture(scope="module")
def tiny_pieces(tiny_bert):
    return Pieces((tiny_bert / "tokenizer.json").read_text(encoding="utf8"), "tiny")


@pytest.fixture(scope="module", params=SENTENCES)
def corpus(request, pieces):
    """The rows of a language, and an index of their pieces."""
    rows = rows_of(request.param)
    return rows, TfidfIndex.from_texts(rows, tokenizer="wordpieces", pieces=pieces)


def is_separate(tokenizer, character):
    """Whether the tokenizer separates a character from letters before and after it."""
    text = tokenizer.normalizer.normalize_str(f"a{character}a")
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == ["a", character, "a"]


def reference(rows, tokenizer):
    """Returns the reference index of rows, of which the words are the pieces of a tokenizer."""

    def split(text):
        each = tokenizer.encode(text, add_special_tokens=False)
        return [(*span, piece) for span, piece in zip(each.offsets, each.tokens, strict=True) if piece != "[UNK]"]

    def kind(piece):
        if piece.startswith("##") and len(piece) > 2:
            return 2
        return int(len(piece) == 1 and is_separate(tokenizer, piece))

    return ReferenceIndex.build(rows, split, kind)


def by_word(found):
    """Returns the pieces of each word."""
    starts = [n for n, piece in enumerate(found) if not piece.startswith("##")]
    return [found[start:end] for start, end in zip(starts, [*starts[1:], len(found)], strict=True)]


@pytest.mark.parametrize(
    ("options", "radius"),
    [({}, 20), ({"beta": 0.9}, 1), ({"replace_which": "random"}, 20), ({"replace_with": "random"}, 20)],
)
def test_negatives_equal_those_of_the_reference(corpus, tokenizer, options, radius):
    rows, index = corpus
    twin = reference(rows, tokenizer)
    assert [index.terms[term] for term in index.by_rank] == twin.by_rank
    ours = index.augment(rows, seed=5, epoch=2, radius=radius, **options)
    settings = {"beta": 0.5, "seed": 5, "epoch": 2, "radius": radius, **options}
    for row in range(0, len(rows), 7):
        assert ours[row] == twin.augment(rows[row], row=row, **settings)
    unseen = [f"{rows[3]}xyz{rows[4]}", "Küche, 北京に"]
    settings["mode"] = "positive"
    ours = index.augment(unseen, **{**settings, "radius": radius})
    assert ours == [twin.augment(text, row=row, **settings) for row, text in enumerate(unseen)]


def test_words_remain_words_and_whole_words_remain_the_intended_pieces(corpus, pieces):
    rows, index = corpus
    exact = 0
    for row, text in enumerate(rows):
        negative, replaced = index.replacements(text, row=row, beta=0.7)
        assert negative == index.augment([text], rows=[row], beta=0.7)[0]
        new = {each.span: each.new for each in replaced}
        assert len(new) > 0
        split, intended = pieces.split([text])[0], []
        for start, end, piece in split:
            mark = "##" if piece.startswith("##") else ""
            intended.append(mark + new[start, end] if (start, end) in new else piece)
        found = pieces.terms([negative])[0]
        assert " ".join(found).replace(" ##", "") == " ".join(intended).replace(" ##", "")
        parts = [by_word(each) for each in ([piece for _, _, piece in split], intended, found)]
        for before, wanted, after in zip(*parts, strict=True):
            if len(before) == 1 or before == wanted:
                assert after == wanted
                exact += before != wanted
        kept, copied = "", 0
        for each in replaced:  # the text between the replaced pieces is the same in both
            assert text[slice(*each.span)].removeprefix("##") == each.old
            kept += text[copied : each.span[0]] + each.new
            copied = each.span[1]
        assert negative == kept + text[copied:]
    assert exact > 50


@pytest.mark.slow
def test_classes_equal_those_of_the_library_for_every_character():
    """Every character is a row (of those unassigned, every 50th), so terms are ordered by class and then by bytes."""
    splitter = bert([])
    codes = (code for code in range(0x21, sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    letters = [chr(code) for code in codes if code % 50 == 0 or category(chr(code)) not in ("Cn", "Co")]
    letters = [each for each in letters if splitter.normalizer.normalize_str(each).strip() == each]
    pieces = Pieces.of(bert(["[UNK]", *letters]), "test")
    index = TfidfIndex.from_texts(letters, tokenizer="wordpieces", pieces=pieces)
    separate = {each for each in index.terms if is_separate(splitter, each)}
    assert len(separate) > 70_000
    found = [index.terms[term].encode() for term in index.by_rank]
    (start,) = [rank for rank, (one, other) in enumerate(pairwise(found), 1) if other < one]
    assert {each.decode() for each in found[start:]} == separate


def test_a_piece_that_shares_a_character_with_another_is_not_replaced():
    """A tokenizer without case splits a Korean syllable into letters, whose offsets are those of the syllable."""
    letters = [chr(code) for code in range(0x1100, 0x1200)]
    splitter = bert(["[UNK]", *letters, *("##" + each for each in letters), "seoul", "in", "tag"], lowercase=True)
    pieces = Pieces.of(splitter, "test")
    rows = ["한국 Seoul 한", "Seoul in 국어", "Tag", "in Tag"]
    index = TfidfIndex.from_texts(rows, tokenizer="wordpieces", pieces=pieces)
    assert [word.replaceable for word in index.explain(rows[0])] == [False] * 6 + [True] + [False] * 3
    assert index.augment(["한국"])[0] == "한국"
    twin = reference(rows, splitter)
    for row, text in enumerate(rows):
        ours = index.augment([text], rows=[row], radius=9)[0]
        assert ours == twin.augment(text, row=row, seed=0, epoch=0, beta=0.5, radius=9)


def test_special_and_unknown_tokens_are_left_out(pieces):
    found = pieces.terms(["[CLS] Drei ☃☃ Männer [UNK]", "", "\ud800 Drei"])
    assert not any(mark in piece for piece in found[0] for mark in ("[", "☃"))
    assert found[1] == []
    split = pieces.split(["Drei ☃ Männer", ""])
    assert [[piece for _, _, piece in each] for each in split] == [*pieces.terms(["Drei Männer"]), []]
    index = TfidfIndex.from_texts(["Drei ☃ Männer", "Drei [CLS] Hunde\ud800"], tokenizer="wordpieces", pieces=pieces)
    assert not {"[CLS]", "[UNK]"} & set(index.terms)
    assert "☃" in index.augment(["Drei ☃ Männer"])[0]


def test_an_index_of_files_and_cse_augment_equal_the_python_api(tmp_path, pieces, cse):
    rows = [*rows_of("ja"), "", "a\x1eb, c"]
    (tmp_path / "a.txt").write_text("\n".join(rows) + "\n", encoding="utf8")
    pq.write_table(pa.table({"t": rows}), tmp_path / "a.parquet")
    index = TfidfIndex.from_texts(rows, tokenizer="wordpieces", pieces=pieces)
    for name, column in (("a.txt", None), ("a.parquet", "t")):
        built = TfidfIndex.build(tmp_path / name, column=column, tokenizer="wordpieces", pieces=pieces)
        assert (built.terms, built.info, built.by_rank.tolist()) == (index.terms, index.info, index.by_rank.tolist())
    index.save(tmp_path / "tfidf")
    expected = index.augment(rows, seed=3)
    parts = ("-o", "p", "--parts", "--compression", "none")
    for given, written in ((("-o", "n.txt"), "n.txt"), (parts, "p/part-00000.txt")):
        ran(cse("augment", "a.txt", "--seed", 3, *given, cwd=tmp_path))
        assert (tmp_path / written).read_text(encoding="utf8").split("\n")[:-1] == expected
    done = cse("augment", "a.txt", "--seed", 3, "--format", "jsonl", cwd=tmp_path)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["text"], each["output"]) for each in records] == list(zip(rows, expected, strict=True))
    for row, record in enumerate(records):
        _, replaced = index.replacements(rows[row], row=row, seed=3)
        assert [tuple(each["span"]) for each in record["replaced"]] == [each.span for each in replaced]
    done = cse("augment", "a.txt", "-o", "ray", "--parts", "--engine", "ray", cwd=tmp_path)
    refused(done, "--engine ray cannot be combined with an index of wordpieces")
    words = json.loads(cse("explain", rows[0], "--json", cwd=tmp_path).stdout)["words"]
    assert [each["word"] for each in words] == [rows[0][start:end] for start, end, _ in index.tokenize(rows[0])]


def test_the_index_is_stored_with_its_tokenizer(tmp_path, pieces, tiny_pieces):
    rows = rows_of("de")
    index = TfidfIndex.from_texts(rows, tokenizer="wordpieces", pieces=pieces)
    index.save(tmp_path / "i")
    opened = TfidfIndex.open(tmp_path / "i")
    assert (opened.tokenizer, opened.pieces.hash, opened.terms) == ("wordpieces", pieces.hash, index.terms)
    with safe_open(tmp_path / "i" / "index.safetensors", "np") as file:
        stored = json.loads(file.metadata()["cse"])["tokenizer"]
    assert stored == {"name": "wordpieces", "lowercase": True, "nfkc": False, "pieces": pieces.hash}
    copied = pickle.loads(pickle.dumps(index))
    assert copied.augment(rows) == opened.augment(rows) == index.augment(rows)
    assert (copied.transform(rows) != index.transform(rows)).nnz == 0
    tiny_pieces.save(tmp_path / "i")
    refuses("is not the tokenizer with which the index was built", TfidfIndex.open, tmp_path / "i")
    (tmp_path / "i" / "tokenizer.json").write_text("{", encoding="utf8")
    refuses(r"tokenizer\.json: is not the tokenizer .*; build the index again", TfidfIndex.open, tmp_path / "i")
    refuses("give the attribute pieces", TfidfIndex.from_bytes, index.to_bytes())


def test_merging_needs_the_same_tokenizer(tmp_path, pieces, tiny_pieces):
    words = {"tokenizer": "wordpieces", "pieces": pieces}
    for name, rows in (("a", rows_of("de")), ("b", rows_of("zh"))):
        TfidfIndex.from_texts(rows, **words).save(tmp_path / name)
    merged = TfidfIndex.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "m")
    whole = TfidfIndex.from_texts([*rows_of("de"), *rows_of("zh")], **words)
    assert TfidfIndex.open(tmp_path / "m").to_bytes() == merged.to_bytes() == whole.to_bytes()
    TfidfIndex.from_texts(GERMAN, tokenizer="wordpieces", pieces=tiny_pieces).save(tmp_path / "c")
    refuses("wordpieces of the tokenizer", TfidfIndex.merge, [tmp_path / "a", tmp_path / "c"], tmp_path / "m")


def test_tokenizers_of_other_kinds_are_refused():
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0))
    for other, kind in ((unigram, "Unigram"), (bert(["[UNK]"], handle_chinese_chars=False), "WordPiece")):
        refuses(rf"the tokenizer of m \({kind}\) does not split text as BERT's does", Pieces.of, other, "m")
    refuses("the tokenizer of m has no fast version", Pieces.of, object(), "m")


def test_options_that_do_not_suit_the_tokenizer_are_refused(tmp_path, tiny_bert, cse_here):
    (tmp_path / "a.txt").write_text("\n".join(GERMAN), encoding="utf8")
    for flags, message in (
        ("--tokenizer wordpieces", "wordpieces needs the tokenizer of a model"),
        (f"--model {tiny_bert}", "--model belongs to --tokenizer wordpieces"),
        (f"--tokenizer wordpieces --model {tiny_bert} --nfkc", "--nfkc has no effect"),
        (f"--tokenizer wordpieces --model {tiny_bert} --no-lowercase", "--no-lowercase has no effect"),
        (f"--tokenizer wordpieces --model {tiny_bert} --engine ray", "--engine ray cannot be combined"),
        ("--tokenizer wordpieces --model ./none", "./none: no such folder"),
    ):
        refused(cse_here("build-tfidf", "a.txt", *flags.split(), cwd=tmp_path), message)
    assert not (tmp_path / "tfidf").exists()


@pytest.mark.slow
def test_a_run_uses_the_pieces_of_its_model_and_can_be_resumed(
    tmp_path, run_config, short_corpus, tiny_bert, pieces, cse_here
):
    index = tmp_path / "tfidf"
    flags = ("--tokenizer", "wordpieces", "--model", tiny_bert, "--json")
    built = ran(cse_here("build-tfidf", short_corpus, *flags, cwd=tmp_path))
    assert json.loads(built)["written"].keys() == {"index.safetensors", "matrix.npz", "tokenizer.json"}
    una = {"una": {"every": 1, "use_as": "hard-negatives", "tokenizer": "wordpieces"}}
    config = run_config.replace(tfidf=str(index), negatives=("una",), save_every=2, log_every=100, **una)
    whole = train(config.replace(name="whole"))
    refuses("a crash", train, config.replace(name="cut"), Stop(5), error=MemoryError)
    cut = whole.folder.with_name("cut")
    same_run(whole.folder, train(resumed_config(cut), resume=cut).folder)
    of_words = config.replace(tfidf=str(short_corpus.with_name("tfidf")), name="words")
    refuses("--tokenizer wordpieces --model MODEL", train, of_words)
    TfidfIndex.build(short_corpus, tokenizer="wordpieces", pieces=pieces).save(tmp_path / "other")
    message = f"--tfidf: the index has the pieces of another tokenizer than {tiny_bert}"
    refuses(message, train, config.replace(tfidf=str(tmp_path / "other"), name="other"))
    shutil.rmtree(index)
    (tmp_path / "other").rename(index)
    refuses(message, train, resumed_config(cut), resume=cut)


def test_hybrid_search_finds_pieces_that_are_not_words(tmp_path, tiny_bert, glove, cse_here):
    pytest.importorskip("bm25s")
    texts = ["Kindergartenplatz", "overplayed songs in a town", "the dog ran", "unplayable games", "a cat"] * 3
    index = SearchIndex.build(Encoder(tiny_bert), texts, tmp_path / "index")
    fusion = Fusion(stop_words="none", bm25_tokenizer="wordpieces", bm25_weight=1)
    by_words = index._words(Fusion(language="none", bm25_tokenizer="unicode")).search("replayed", 5)
    by_pieces = index._words(fusion).search("replayed", 5)
    assert by_words.tolist() == []
    assert 1 in by_pieces.tolist()
    found = index.search(["replayed"], 3, hybrid=fusion)[0]
    scores = index._words(fusion).scores("replayed")
    assert [hit.row for hit in found] == sorted(range(15), key=lambda row: (-scores[row], row))[:3]
    names = {path.name.split("-", 2)[2] for path in (tmp_path / "index").glob("bm25-*")}
    assert names == {"unicode-none-none", "wordpieces-none-none"}
    index = SearchIndex.build(index.encoder, [*texts, "unplayed"], tmp_path / "index")
    assert 15 in index._words(fusion).search("replayed", 20)
    assert len(list((tmp_path / "index").glob("bm25-*"))) == 1
    search = ("search", tiny_bert, "-o", tmp_path / "index", "--query", "replayed", "--bm25-tokenizer")
    ran(cse_here(*search, "wordpieces", "--hybrid", "--json", cwd=tmp_path))
    refused(cse_here(*search, "wordpieces", cwd=tmp_path), "--bm25-tokenizer has no effect without --hybrid")
    refuses("--bm25-tokenizer", Fusion, bm25_tokenizer="letters")
    other = SearchIndex.build(Encoder(glove), texts, tmp_path / "glove")
    refuses("has no fast version", other.prepare, fusion)


def test_the_hash_depends_only_on_what_determines_the_pieces(tokenizer, pieces):
    other = Tokenizer.from_str(tokenizer.to_str())
    other.enable_truncation(8)
    other.enable_padding(length=8)
    assert Pieces.of(other, "other").hash == pieces.hash
    assert Pieces.of(other, "other").terms([GERMAN[1] * 9]) == pieces.terms([GERMAN[1] * 9])
    other.normalizer = normalizers.BertNormalizer(lowercase=True)
    assert Pieces.of(other, "other").hash != pieces.hash


TRICKY = [
    "The Boundary-Layer: na\u00efve caf\u00e9, CAF\u00c9! (don't) e_mail",
    "  two  spaces\tand a tab; \u4e2d\u6587 words, 3.14 x2 abc123 ",
    "",
    "Zw\u00f6lf Boxk\u00e4mpfer \u201cquoted\u201d \u2014 dash\u00a0nbsp e\u0301 combining",
]


@pytest.fixture(scope="module")
def rows(short_rows):
    """Sentences with invented words, which the tokenizer of the tiny model divides; several are equally frequent."""
    words = [a + b + c for a in ("blon", "kra", "zwei") for b in ("avi", "ortu") for c in ("rog", "smet", "x2", "nd")]
    return [f"The {words[number % 24 % (number % 5 + 20)]}, then: {row}" for number, row in enumerate(short_rows)]


@pytest.fixture(scope="module")
def words_file(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("\n".join(rows) + "\n", encoding="utf8")
    return path


@pytest.fixture(scope="module")
def tiny_tokenizer(tiny_bert):
    return load_tokenizer(find_model(str(tiny_bert)))


def test_words_and_pieces_equal_those_of_the_tokenizer_on_whole_texts(tiny_tokenizer, rows):
    """The tokenizer gives a word number to each token of a whole text."""
    counts, pieces = Counter(), {}
    for text in [*rows, *TRICKY]:
        found = tiny_tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        words = {}
        for number, (start, end), piece in zip(found.word_ids, found.offsets, found.tokens, strict=True):
            words.setdefault(number, []).append((text[start:end], piece))
        for parts in words.values():
            word = tiny_tokenizer.backend_tokenizer.normalizer.normalize_str("".join(part for part, _ in parts))
            counts[word] += 1
            pieces[word] = tuple(piece for _, piece in parts)
    found = count_words(tiny_tokenizer, [rows, TRICKY], "test")
    assert found.words == counts.total()
    assert found.tokens == sum(count * len(pieces[word]) for word, count in counts.items())
    assert found.unknown == sum(count for word, count in counts.items() if "[UNK]" in pieces[word]) > 0
    for number in range(1, 6):
        tokens = sum(count * number for word, count in counts.items() if len(pieces[word]) == number)
        assert found.by_pieces.get(number, 0) == tokens
    known = {word for word in counts if counts[word] >= MIN_COUNT and "[UNK]" not in pieces[word]}
    divided = {word for word in known if word.isalnum() and any(map(str.isalpha, word)) and len(pieces[word]) > 1}
    expected = {word: (counts[word], pieces[word], counts[word] * (len(pieces[word]) - 1)) for word in divided}
    assert len(expected) > 20
    assert {each.word: (each.count, each.pieces, each.saved) for each in found.divided} == expected


def test_a_tokenizer_without_words_is_refused():
    other = SimpleNamespace(backend_tokenizer=Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")))
    message = "--model m: the tokenizer does not divide a text into words first"
    refuses(message, count_words, other, [["a text"]], "--model m")


def test_doctor_lists_the_divided_words_of_the_model(cse_here, words_file, rows, tiny_bert, tiny_tokenizer):
    done = ran(cse_here("doctor", "--model", tiny_bert, words_file, "--top", 7, "--json"))
    found, expected = json.loads(done)["model"], count_words(tiny_tokenizer, [rows], "test")
    assert found["tokens"] == sum(len(ids) - 2 for ids in tiny_tokenizer(rows)["input_ids"])
    assert (found["words"], found["divided_words"]) == (expected.words, len(expected.divided))
    assert [each["word"] for each in found["listed_words"]] == [each.word for each in expected.divided[:7]]
    assert found["listed_words"][0]["saved_share"] == expected.divided[0].saved / expected.tokens
    assert found["token_share_divided"] == pytest.approx(1 - expected.by_pieces[1] / expected.tokens)
    shown = ran(cse_here("doctor", "--model", tiny_bert, words_file, "--top", 7))
    assert all(each.word in shown for each in expected.divided[:7])
    assert f"{expected.tokens:,} tokens" in shown


def test_doctor_counts_texts_that_the_model_reads_as_the_same_tokens(cse_here, tmp_path, tiny_bert):
    long = "word " * 40
    rows = ["one row", "One  row", "ONE ROW ", "\u00f3ne row", "another", f"{long} a", f"{long} b", ""]
    (tmp_path / "c.txt").write_text("\n".join(rows) + "\n", encoding="utf8")
    done = ran(cse_here("doctor", tmp_path / "c.txt", "--model", tiny_bert, "--json"))
    assert json.loads(done)["model"]["equal_texts"] == 2
    shown = cse_here("doctor", tmp_path / "c.txt", "--model", tiny_bert).stdout.replace("\n", " ")
    assert "2 texts have the first 32 tokens of another text" in shown


def test_doctor_refuses_options_that_cannot_work(cse_here, words_file):
    refused(cse_here("doctor", words_file, "--top", 3), "--top has no effect without --model")
    refused(cse_here("doctor", words_file, "--model", "./none"), "./none: no such folder")
    refused(cse_here("doctor", words_file, "--model", "minilm", "-"), "--model reads CORPUS twice")
