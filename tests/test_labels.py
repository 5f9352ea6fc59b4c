"""Tests of `cse label`: pools, judgements, the terminal, the web page, and the number of queries that is needed."""

import http.client
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from cse import Encoder, InputError, SearchIndex, compare
from cse.cli import judging
from cse.evaluation.labels import Judgements, Session, outcome, pool
from cse.evaluation.significance import power, queries_needed
from random_texts import some_texts, write_vectors
from test_cli import refused

KEY = {True: "y", False: "n", None: "s"}
IDS = [f"d{row}" for row in range(30)]
OLD = {"1": [3, 1, 2, 9], "2": [5, 6, 7, 8], "3": [10, 11, 12, 13]}
NEW = {"1": [2, 3, 20, 21], "2": [5, 6, 7, 22], "3": [13, 12, 11, 10]}
QUERIES = {"1": "first query", "2": "second query", "3": "third query"}
TEXTS = {each: f"text of {each}" for each in IDS}


def ids_of(rankings):
    return {query: [IDS[row] for row in rows] for query, rows in rankings.items()}


def session_in(folder, depth=3):
    return Session(pool(OLD, NEW, IDS, depth, 0), QUERIES, TEXTS, Judgements(folder / "judgements.jsonl"))


def judged(folder):
    return [json.loads(line) for line in (folder / "judgements.jsonl").read_text().splitlines()]


def test_a_pool_holds_the_first_documents_of_both_rankings_once():
    pools = pool(OLD, NEW, IDS, 3, 0)
    assert {each.query: set(each.documents) for each in pools} == {
        "1": {"d1", "d2", "d3", "d20"},
        "2": {"d5", "d6", "d7"},
        "3": {"d10", "d11", "d12", "d13"},
    }
    assert all(len(set(each.documents)) == len(each.documents) for each in pools)


def test_the_order_of_a_pool_does_not_depend_on_the_rankings_that_found_the_documents():
    assert pool(OLD, NEW, IDS, 4, 7) == pool(NEW, OLD, IDS, 4, 7)
    mixed = {query: OLD[query][:2] + NEW[query][2:] for query in OLD}
    rest = {query: NEW[query][:2] + OLD[query][2:] for query in OLD}
    assert pool(OLD, NEW, IDS, 4, 7) == pool(mixed, rest, IDS, 4, 7)
    # Over many seeds, every document is at the first place equally often.
    many = {"1": list(range(4))}, {"1": list(range(2, 6))}
    first = [pool(*many, IDS, 4, seed)[0].documents[0] for seed in range(1200)]
    counts = [first.count(each) for each in IDS[:6]]
    assert sum((count - 200) ** 2 / 200 for count in counts) < 25.7  # chi-square with 5 degrees of freedom, p = 1e-4


def test_adding_a_document_or_a_query_keeps_the_order_of_the_others():
    longer = {query: [*rows, 29] for query, rows in NEW.items()}
    for short, long in zip(pool(OLD, NEW, IDS, 5, 1), pool(OLD, longer, IDS, 5, 1), strict=True):
        assert list(short.documents) == [each for each in long.documents if each != "d29"]
    more = pool({**OLD, "4": [1]}, {**NEW, "4": [2]}, IDS, 5, 1)
    assert [each for each in more if each.query != "4"] == pool(OLD, NEW, IDS, 5, 1)


def test_judgements_are_kept_after_a_kill_in_the_middle_of_a_line(tmp_path):
    session = session_in(tmp_path)
    for relevant in (True, None, False):
        session.press(KEY[relevant])
    found = dict(session.judgements.values)
    session.judgements.close()
    path = tmp_path / "judgements.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"query": "2", "docu')
    again = session_in(tmp_path)
    assert again.judgements.values == found
    again.press("y")
    again.judgements.close()
    assert path.read_bytes().startswith(whole)
    assert len(judged(tmp_path)) == 4


def test_each_judgement_is_in_the_file_before_the_next_document_is_shown(tmp_path):
    session = session_in(tmp_path)
    for number in range(1, 5):
        session.press(KEY[True])
        assert len(judged(tmp_path)) == number
    session.judgements.close()


def test_undo_takes_back_judgements_one_by_one_also_those_of_an_earlier_call(tmp_path):
    session = session_in(tmp_path)
    shown = []
    for relevant in (True, None, False):
        shown.append(session.current()["document"])
        session.press(KEY[relevant])
    session.judgements.close()
    session = session_in(tmp_path)
    for text in reversed(shown):
        session.press("u")
        assert session.current()["document"] == text
    session.press("u")
    assert session.judgements.values == {}
    session.judgements.close()
    session = session_in(tmp_path)
    assert session.judgements.values == {}
    session.judgements.close()


def test_a_second_process_cannot_open_the_judgements_and_invalid_lines_are_named(tmp_path):
    judgements = Judgements(tmp_path / "j.jsonl")
    with pytest.raises(InputError, match="another cse label"):
        Judgements(tmp_path / "j.jsonl")
    judgements.close()
    good = '{"query": "1", "document": "d1", "relevant": true, "seconds": 1}\n'
    for bad in ("nonsense\n", '{"query": "1"}\n', '{"query": "1", "document": "d2", "undone": true}\n'):
        (tmp_path / "j.jsonl").write_text(good + bad)
        with pytest.raises(InputError, match="line 2 is not a judgement"):
            Judgements(tmp_path / "j.jsonl")


def test_the_progress_counts_queries_and_documents_and_estimates_the_time(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    session = session_in(tmp_path)
    assert re.fullmatch(r"query 1 of 3, document 1 of \d", session.current()["progress"])
    for seconds in (30, 60, 600):
        session.current()
        now += seconds
        session.press(KEY[False])
    left = sum(len(each.documents) for each in session.pools) - 3
    assert session.current()["progress"].endswith(f", {left} minutes left")  # the median is a minute
    session.judgements.close()


def dcg(values):
    return sum(value / math.log2(place + 2) for place, value in enumerate(values))


def test_the_outcome_equals_a_slow_computation_and_leaves_out_incomplete_queries():
    pools = pool(OLD, NEW, IDS, 3, 0)
    relevant = {"1": {"d2", "d20"}, "2": {"d5"}, "3": {"d13"}}
    judgements = {(p.query, each): each in relevant[p.query] for p in pools for each in p.documents}
    judgements["1", "d2"] = None  # skipped: not relevant for the score, and not in the file
    qrels, found = outcome(pools, judgements, ids_of(OLD), ids_of(NEW), 3, 3.0, seconds=10)
    assert "d2" not in qrels["1"]
    differences = []
    for query, names in {"1": {"d20"}, "2": {"d5"}, "3": {"d13"}}.items():
        old, new = ([float(IDS[row] in names) for row in side[query][:3]] for side in (OLD, NEW))
        differences.append(100 * (dcg(new) - dcg(old)) / dcg([1.0] * len(names)))
    assert found["comparison"]["mean"] == pytest.approx(np.mean(differences))
    assert found["spread"] == pytest.approx(np.std(differences, ddof=1))
    assert found["needed"] == queries_needed(3.0, found["spread"])
    assert found["more"] == found["needed"] - 3
    assert found["more_judgements"] == round(found["more"] * found["judgements"] / 3)
    assert (found["complete"], found["scored"], found["judgements"]) == (3, 3, len(judgements))

    del judgements["3", "d10"]
    for each in ("d5", "d6", "d7"):
        judgements["2", each] = False
    qrels, found = outcome(pools, judgements, ids_of(OLD), ids_of(NEW), 3, 3.0)
    assert set(qrels) == {"1", "2"}
    assert (found["complete"], found["scored"], found["comparison"]) == (2, 1, None)


def test_the_power_equals_that_of_simulated_t_tests():
    from scipy.stats import ttest_1samp

    generator = np.random.default_rng(0)
    for queries, effect in ((8, 0.9), (30, 0.4), (60, -0.5)):
        sample = generator.normal(effect, 1, (20_000, queries))
        found = (ttest_1samp(sample, 0, axis=1).pvalue < 0.05).mean()
        assert power(queries, effect) == pytest.approx(found, abs=0.012)  # over 3 standard errors


def test_the_number_of_queries_is_the_smallest_with_the_probability():
    for difference, spread in ((3, 12), (-1.2, 4), (5, 2), (50, 1)):
        needed = queries_needed(difference, spread)
        assert needed == next(n for n in range(2, 10_000) if power(n, difference / spread) >= 0.8)
    assert queries_needed(3, 15) == pytest.approx(7.85 * 25, abs=3)
    assert queries_needed(3, 15, probability=0.9) > queries_needed(3, 15)


ROWS = some_texts(60)
ASKED = [" ".join(ROWS[row].split()[:3]) for row in (3, 11, 25, 40)]
COMMAND = ("label", "glove:a.txt", "glove:b.txt", "corpus.txt", "--queries", "queries.txt", "--depth", "4")
PROGRAM = (sys.executable, "-c", "from cse.cli import main; main()")


@pytest.fixture
def place(tmp_path):
    """A folder with two files of word vectors, a corpus, and queries."""
    write_vectors(tmp_path / "a.txt")
    write_vectors(tmp_path / "b.txt", width=5)
    (tmp_path / "corpus.txt").write_text("".join(f"{row}\n" for row in ROWS), encoding="utf8")
    (tmp_path / "queries.txt").write_text("".join(f"{each}\n" for each in ASKED), encoding="utf8")
    return tmp_path


class Terminal:
    """Runs cse in a pseudo-terminal."""

    def __init__(self, folder, *arguments):
        pty = pytest.importorskip("pty")
        self.pid, self.file = pty.fork()
        if self.pid == 0:  # the child
            os.chdir(folder)
            os.execv(sys.executable, [*PROGRAM, *arguments])
        self.seen = b""

    def until(self, mark, seconds=120):
        """Reads until the pattern; returns the text up to its end."""
        end = time.monotonic() + seconds
        while not (found := re.search(mark, self.seen)) and time.monotonic() < end:
            self.seen += os.read(self.file, 4096)
        assert found, self.seen
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before.decode()

    def press(self, key):
        """Waits until a document is shown, or all are judged; presses a key, and returns the text that was shown."""
        shown = self.until(rb"quit: |finish: ")
        os.write(self.file, key)
        return shown

    def rest(self):
        """Reads to the end; returns the text and the exit code."""
        try:
            while more := os.read(self.file, 4096):
                self.seen += more
        except OSError:  # Linux reports the end as an error
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.file)
        return self.seen.decode(), code


def test_judging_in_a_terminal_with_undo_and_after_a_kill(place):
    terminal = Terminal(place, *COMMAND)
    first = terminal.press(b"y")
    assert "query 1 of 4, document 1 of" in first
    assert not re.search(r"glove|rank|score|0\.\d", first.split("query 1 of 4")[1])
    assert "document 2 of" in terminal.press(b"u")
    assert "document 1 of" in terminal.press(b"n")
    assert "document 2 of" in terminal.press(b"x")  # not a key: the same document again
    assert "document 2 of" in terminal.press(b"s")
    assert "document 3 of" in terminal.until(b"quit: ")
    os.kill(terminal.pid, signal.SIGKILL)
    terminal.rest()
    records = judged(place / "labels")
    assert [record.get("relevant", "undone") for record in records] == [True, "undone", False, None]

    terminal = Terminal(place, *COMMAND, "--json")
    assert "document 3 of" in terminal.press(b"y")
    for number in range(100):
        if "finish: " in terminal.press(b"yn"[number % 2 : number % 2 + 1]):
            break
    # The last key was y or n, which has no effect once all documents are judged.
    assert "finish: " in terminal.press(b"q")
    text, code = terminal.rest()
    assert code == 0
    result = json.loads(text[text.index("{") :])
    assert result["complete"] == result["queries"] == 4
    assert result["judgements"] == len({(r["query"], r["document"]) for r in judged(place / "labels")})


def ask(address, method, name, body=None, **headers):
    """Sends a request to the page; returns the status and the answer."""
    host, folder = address
    connection = http.client.HTTPConnection(host, timeout=30)
    kind = {"Content-Type": "application/json"} if body is not None else {}
    content = None if body is None else json.dumps(body)
    further = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, folder + name, content, {**kind, **further})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, json.loads(text) if answer.headers["Content-Type"] == "application/json" else text


def judge_all(place, relevant, arguments=COMMAND):
    """Judges all documents on the page by the function ``relevant`` of query and text; returns the result."""
    command = [*PROGRAM, *arguments, "--web", "--json"]
    process = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = None
    for line in process.stderr:
        if found := re.search(r"http://(127\.0\.0\.1:\d+)(/\S+/)", line):
            address = found.groups()
            break
    assert address
    _, state = ask(address, "GET", "state")
    while state["document"] is not None:
        key = "y" if relevant(state["query"], state["document"]) else "n"
        _, state = ask(address, "POST", "answer", {"key": key, "change": state["change"]})
    status, state = ask(address, "POST", "answer", {"key": "q", "change": state["change"]})
    assert (status, state["finished"]) == (200, True)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(out)


def test_the_comparison_equals_that_of_cse_compare_with_the_folder(place):
    def relevant(query, text):
        return len(set(query.split()) & set(text.split())) > 1

    command, folder = list(COMMAND), place / "labels"
    command[command.index("--depth") + 1] = "10"
    result = judge_all(place, relevant, command)
    pairs = [f"glove:{place}/{name}.txt" for name in "ab"]
    record = compare(*pairs, suite="retrieval", data=folder).tasks[0]
    found = result["comparison"]
    for name in ("a", "b", "mean", "low", "high", "p"):
        assert found[name] == pytest.approx(record[name]), name
    assert (found["verdict"], result["scored"]) == (record["verdict"], record["examples"])
    # Every document that either encoder finds is judged, and judged correctly.
    judgements = {(r["query"], r["document"]): r["relevant"] for r in judged(folder)}
    texts = dict(json.loads(line).values() for line in (folder / "queries.jsonl").read_text().splitlines())
    assert list(texts.values()) == ASKED
    for name in pairs:
        hits = SearchIndex.build(Encoder(name), ROWS).search(texts.values(), 10)
        for query, each in zip(texts, hits, strict=True):
            for hit in each:
                assert judgements[query, hit.id] == relevant(texts[query], hit.text)


def test_another_encoder_and_more_queries_ask_only_for_documents_without_a_judgement(place):
    judge_all(place, lambda query, text: True)
    before = judged(place / "labels")
    with (place / "queries.txt").open("a") as file:
        file.write(f"{ROWS[50]}\n")
    write_vectors(place / "c.txt", width=3)
    terminal = Terminal(place, *COMMAND[:2], "glove:c.txt", *COMMAND[3:])
    left = int(re.search(r"5 queries, (\d+) documents to judge", terminal.press(b"q"))[1])
    assert terminal.rest()[1] == 0
    assert judged(place / "labels") == before
    known = {(r["query"], r["document"]) for r in before}
    wanted = set()
    for name in ("a", "c"):
        index = SearchIndex.build(Encoder(f"glove:{place}/{name}.txt"), ROWS)
        for number, hits in enumerate(index.search([*ASKED, ROWS[50]], 4), 1):
            wanted |= {(str(number), hit.id) for hit in hits}
    assert left == len(wanted - known)
    assert 0 < left < len(wanted)


def test_an_index_gives_the_same_pools_as_its_corpus(place):
    SearchIndex.build(Encoder(f"glove:{place}/a.txt"), ROWS, place / "index")
    found = []
    for documents, folder in (("corpus.txt", "labels"), ("index", "other")):
        terminal = Terminal(place, *COMMAND[:3], documents, *COMMAND[4:], "-o", folder)
        shown = terminal.press(b"q").partition("query 1 of")[2]
        assert terminal.rest()[1] == 0
        found.append((shown, json.loads((place / folder / "labels.json").read_text())))
    assert found[0] == found[1]


@pytest.fixture
def page(tmp_path):
    """A session on the page, and the address of the page."""
    session = session_in(tmp_path)
    told = []
    thread = threading.Thread(target=judging.on_page, args=(session, told.append), daemon=True)
    thread.start()
    end = time.monotonic() + 30
    while not told and time.monotonic() < end:
        time.sleep(0.01)
    address = re.search(r"http://(127\.0\.0\.1:\d+)(/\S+/)", told[0]).groups()
    yield session, address
    ask(address, "POST", "answer", {"key": "q", "change": session.judgements.changes})
    thread.join(30)
    assert not thread.is_alive()
    session.judgements.close()


def test_the_page_refuses_requests_without_the_token_or_from_another_page(page):
    session, (host, folder) = page
    answer = {"key": "y", "change": 0}
    assert ask((host, "/"), "GET", "")[0] == 404
    assert ask((host, f"{folder[:-2]}/"), "GET", "state")[0] == 404
    assert ask((host, "/"), "POST", "answer", answer)[0] == 404
    assert ask((host, folder), "POST", "answer", answer, Origin="http://127.0.0.1:1")[0] == 404
    assert ask((host, folder), "POST", "answer", answer, Host="example.org")[0] == 404
    assert ask((host, folder), "POST", "answer", answer, Content_Type="text/plain")[0] == 404
    assert ask((host, folder), "POST", "answer", {"key": "y"})[0] == 400
    assert session.judgements.values == {}
    assert ask((host, folder), "POST", "answer", answer, Origin=f"http://{host}")[0] == 200
    assert list(session.judgements.values.values()) == [True]


def test_an_answer_for_a_document_that_is_no_longer_shown_is_not_stored(page):
    session, address = page
    _, state = ask(address, "GET", "state")
    assert ask(address, "POST", "answer", {"key": "n", "change": state["change"]})[0] == 200
    status, now = ask(address, "POST", "answer", {"key": "y", "change": state["change"]})
    assert (status, now["change"]) == (409, 1)
    assert list(session.judgements.values.values()) == [False]


def test_the_page_does_not_show_where_a_document_comes_from_and_loads_nothing_from_elsewhere(page):
    session, address = page
    _, content = ask(address, "GET", "")
    assert not re.search(r"(src|href)=\"(?!data:,)|@import|url\(", content)
    while (state := ask(address, "GET", "state")[1])["document"] is not None:
        assert set(state) == {"change", "finished", "progress", "query", "document"}
        assert state["document"] in TEXTS.values()
        assert re.fullmatch(r"query \d of 3, document \d of \d(, \d minutes? left)?", state["progress"])
        ask(address, "POST", "answer", {"key": "s", "change": state["change"]})
    assert session.left == 0


def test_the_page_shows_the_document_in_a_browser(page):
    browser = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if browser is None:
        pytest.skip("no headless browser is installed")
    session, (host, folder) = page
    options = ["--no-sandbox", "--headless", "--disable-gpu", "--virtual-time-budget=4000", "--dump-dom"]
    command = [browser, *options, f"http://{host}{folder}"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout
    assert f">{session.current()['document']}</div>" in shown
    assert f">{session.current()['query']}</p>" in shown


@pytest.mark.parametrize(
    ("arguments", "phrases"),
    [
        ((*COMMAND, "-o", "."), ("holds other files",)),
        ((*COMMAND[:2], "glove:a.txt", *COMMAND[3:]), ("the same encoder",)),
        ((*COMMAND[:3], "nowhere.txt", *COMMAND[4:]), ("nowhere.txt: no such file",)),
        ((*COMMAND[:3], "empty", *COMMAND[4:]), ("empty: no index there",)),
        ((*COMMAND[:3], "ids.csv", *COMMAND[4:], "--column", "text", "--id", "id"), ("ids must be distinct",)),
        (COMMAND, ("is not a terminal", "--web")),
    ],
)
def test_label_refuses_invalid_arguments(place, cse, arguments, phrases):
    (place / "empty").mkdir()
    (place / "ids.csv").write_text("id,text\n" + "".join(f"same,{row}\n" for row in ROWS), encoding="utf8")
    refused(cse(*arguments, cwd=place, stdin=""), *phrases)


def test_label_refuses_a_folder_of_another_corpus_seed_or_list_of_queries(place, cse):
    cse(*COMMAND, cwd=place, stdin="")  # makes the folder, then stops because there is no terminal
    refused(cse(*COMMAND, "--seed", "1", cwd=place, stdin=""), "was made with --seed 0")
    (place / "queries.txt").write_text("".join(f"{each}\n" for each in reversed(ASKED)), encoding="utf8")
    refused(cse(*COMMAND, cwd=place, stdin=""), "does not begin with the queries of the folder")
    (place / "queries.txt").write_text("".join(f"{each}\n" for each in ASKED), encoding="utf8")
    (place / "corpus.txt").write_text("".join(f"{row} more\n" for row in ROWS), encoding="utf8")
    refused(cse(*COMMAND, cwd=place, stdin=""), "was made with another corpus")


@pytest.mark.skipif(sys.platform != "linux", reason="needs resource limits")
def test_a_judgement_that_a_full_disk_refuses_leaves_the_file_readable(tmp_path):
    """A limit on file sizes simulates a full disk: the second line is written in part."""
    path = tmp_path / "judgements.jsonl"
    script = (
        "import resource, signal, sys\nfrom pathlib import Path\nfrom cse.evaluation.labels import Judgements\n"
        "file = Judgements(Path(sys.argv[1]))\nfile.add(('1', '2'), relevant=True, seconds=1.0)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nsize = Path(sys.argv[1]).stat().st_size + 20\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))\n"
        "try:\n    file.add(('1', '3'), relevant=True, seconds=1.0)\nexcept OSError as error:\n    print(error.errno)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)\n"
        "file.add(('1', '4'), relevant=False, seconds=1.0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert done.stdout == "27\n"
    assert list(Judgements(path).values.items()) == [(("1", "2"), True), (("1", "4"), False)]
