"""The viewer without a browser: data paths, credit, comparison, server rules, static copies."""

import json
import os
import re
import shutil
import signal
import socket
import time
from pathlib import Path

import anyio
import httpx
import pytest
from processes import start_mage, wait
from typer.testing import CliRunner

from mage.api.dataset import dataset_rows
from mage.cli.main import app
from mage.config.errors import UserError
from mage.run_folder import RunError, RunFolder
from mage.run_folder.turn_files import read_credits, write_moves
from mage.viewer.export import collect, write_file, write_folder
from mage.viewer.library import Library, UnknownPath
from mage.viewer.runs import stored_names
from mage.viewer.server import Server, make_app
from tests.view_runs import CHANCES, HOSTILE, WARNING, make_run, store

TOKEN = "secret"
HOST = {"host": "127.0.0.1:4000"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    make_run(place / "one")
    make_run(place / "two", updates=4, lr=5e-4)
    return place


@pytest.fixture(scope="module")
def library(runs):
    return Library([runs])


# --- Data paths


def test_the_run_list_names_state_progress_and_score(library):
    rows = {row["id"]: row for row in library.get("runs")["runs"]}
    assert {id: (row["state"], row["updates"], row["total"]) for id, row in rows.items()} == {
        "one": ("finished", 6, 6),
        "two": ("finished", 4, 4),
    }
    stored = json.loads((library.runs["one"] / "evaluations" / "after_test.json").read_text())
    last = stored["overall"]["episodes"][-1]["score"]
    assert rows["one"]["score"]["value"] == last["value"]


def test_a_damaged_run_is_listed_with_its_error(tmp_path):
    make_run(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "recipe.toml").write_text("[run]\nupdates = 'many'\n")
    rows = {row["id"]: row for row in Library([tmp_path]).get("runs")["runs"]}
    assert rows["good"]["state"] == "finished"
    assert rows["bad"]["state"] == "damaged"
    assert "updates" in rows["bad"]["error"]


def test_a_run_appears_while_the_viewer_is_open(tmp_path):
    make_run(tmp_path / "first")
    library = Library([tmp_path])
    make_run(tmp_path / "second")
    assert [row["id"] for row in library.get("runs")["runs"]] == ["first", "second"]


def test_runs_of_equal_names_get_different_ids(tmp_path):
    make_run(tmp_path / "a" / "run")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert list(Library([tmp_path]).runs) == ["run", "b.run"]


def test_a_run_holds_curves_panels_recipe_and_warnings(library):
    run = library.get("run/one")
    assert run["metrics"]["score_3"] == pytest.approx([-0.14 + 0.05 * k for k in range(1, 7)])
    assert run["panels"][0]["stages"][1]["overall"]["non_adapting"] == pytest.approx(
        0.125, abs=1e-4
    )
    assert run["warnings"][0] == WARNING
    assert run["recipe"]["learn"]["lr"] == 1e-3
    assert run["stored"] == ["after_test", "before_test", "step_000006"]


def test_a_meta_episode_equals_the_stored_one(library):
    stored = RunFolder.open(library.runs["one"]).read_episodes_of("after_test")[3]
    shown = library.get("run/one/meta/after_test/3")
    assert [one["score"] for one in shown["episodes"]] == [one.score for one in stored.episodes]
    texts = [turn["text"] for one in shown["episodes"] for turn in one["turns"]]
    assert texts == [turn.completion.text for one in stored.episodes for turn in one.turns]
    assert shown["memories"] == list(stored.memories)
    assert shown["task"]["seed"] == str(stored.task.seed), "JavaScript would round the number"


def test_the_index_counts_illegal_replies_and_gains(library):
    index = library.get("run/one/index/after_test")
    metas = RunFolder.open(library.runs["one"]).read_episodes_of("after_test")
    for row, meta in zip(index["rows"], metas, strict=True):
        values = dict(zip(index["columns"], row, strict=True))
        assert values["gain"] == meta.episodes[-1].score - meta.episodes[0].score
        turns = [turn for episode in meta.episodes for turn in episode.turns]
        assert values["illegal"] == sum(not turn.legal for turn in turns)


@pytest.mark.parametrize(
    "path",
    [
        *("", "run", "run/none", "run/../one", "run/one/meta/../3", "run/one/meta/after_test/99"),
        *("run/one/meta/after_test/-1", "run/one/index/..%2f..%2frecipe"),
        *("run/one/tasks/select_000000", "table/../../etc/passwd"),
    ],
)
def test_unknown_data_paths_are_refused(library, path):
    with pytest.raises(LookupError):
        library.get(path)


def test_a_folder_that_does_not_exist_gives_one_message(tmp_path):
    with pytest.raises(RunError, match="there is no folder"):
        Library([tmp_path / "none"])
    with pytest.raises(UnknownPath):
        Library([tmp_path]).get("nothing")


# --- Credit


def test_the_explanation_adds_up_to_the_stored_advantage(library):
    """For GiGPO with its defaults each part is the own value minus the mean of the others."""
    stored = {
        (one.member, one.episode, one.index): one
        for one in read_credits(library.runs["one"], "step_000006")
        if one.group == 1
    }
    found = library.get("run/one/credit/step_000006/1")
    index = library.get("run/one/index/step_000006")["rows"]
    assert len(found["turns"]) == len(stored)
    for turn in found["turns"]:
        number, episode, place = turn["place"]
        credit = stored[index[number][2], episode, place]
        assert turn["advantage"] == credit.advantage
        for part in turn["compared"]:
            expected = 0.0 if part["mean"] is None else part["own"] - part["mean"]
            assert turn["parts"][part["part"]] == pytest.approx(expected)
        assert turn["sentences"][0].startswith("Advantage ")


def test_the_explanation_names_a_weight_that_hides_a_difference(tmp_path):
    make_run(tmp_path / "one", updates=2, episode_weight=0.0)
    turns = Library([tmp_path]).get("run/one/credit/step_000002/0")["turns"]
    assert all(one["parts"]["episode"] == 0 for one in turns if one["place"][2] >= 0)
    told = "The recipe sets advantages.episode_weight = 0, so this difference does not count."
    assert {told in " ".join(one["sentences"]) for one in turns if one["place"][2] >= 0} == {True}


def test_compared_turns_are_those_of_the_same_group_and_state(library):
    found = library.get("run/one/credit/step_000006/0")
    metas = RunFolder.open(library.runs["one"]).read_episodes(6)
    for turn in found["turns"]:
        number, episode, index = turn["place"]
        for part in turn["compared"]:
            for other in part["turns"]:
                meta = metas[other["place"][0]]
                assert meta.group == 0
                if part["part"] == "step":
                    anchor = meta.episodes[other["place"][1]].turns[other["place"][2]].anchor
                    assert anchor == metas[number].episodes[episode].turns[index].anchor


# --- Comparison


def test_two_runs_are_compared_task_by_task(library):
    found = library.get("compare/one/two")
    assert [option[0] for option in found["options"]] == ["learn.lr", "run.updates"]
    panel = next(one for one in found["panels"] if one["second"] == "after_test")
    assert panel["same_panel"]
    assert panel["episodes"][-1]["score"]["difference"]["value"] == 0, "the same scripted agent"
    assert panel["changed"] == []


def test_runs_of_different_panels_have_no_paired_difference(tmp_path):
    from tests.view_runs import play

    make_run(tmp_path / "one")
    store(make_run(tmp_path / "two"), "after_test", play("test", 6))
    panels = Library([tmp_path]).get("compare/one/two")["panels"]
    assert [one["same_panel"] for one in panels if one["first"] == "after_test"] == [False]


# --- The server


class Client:
    """Sends requests to the application without a network."""

    def __init__(self, library: Library) -> None:
        self.app = make_app(library, TOKEN, 4000)

    def send(self, method: str, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        async def one() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.request(method, path, headers=HOST | (headers or {}))

        return anyio.run(one)

    def get(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return self.send("GET", path, headers)


@pytest.fixture(scope="module")
def client(library):
    return Client(library)


def test_the_server_answers_the_page_its_files_and_its_data(client):
    page = client.get(f"/{TOKEN}/")
    assert page.status_code == 200
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    for name in re.findall(r'(?:src|href)="(static/[^"]+)"', page.text):
        assert client.get(f"/{TOKEN}/{name}").status_code == 200
    assert client.get(f"/{TOKEN}/data/run/one").json()["title"] == "one"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {}),
        ("/wrong/", {}),
        ("/wrong/data/runs", {}),
        (f"/{TOKEN}/data/runs", {"host": "attacker.example"}),
        (f"/{TOKEN}/data/runs", {"origin": "http://attacker.example"}),
        (f"/{TOKEN}/data/runs", {"sec-fetch-site": "cross-site"}),
        (f"/{TOKEN}/static/../../server.py", {}),
        (f"/{TOKEN}/static/%2e%2e/%2e%2e/server.py", {}),
        (f"/{TOKEN}/static//etc/passwd", {}),
        (f"/{TOKEN}/data/run/one/../../../etc/passwd", {}),
        (f"/{TOKEN}/data/run/%2e%2e%2fone", {}),
    ],
)
def test_requests_without_token_from_elsewhere_or_with_path_tricks_are_refused(
    client, path, headers
):
    answer = client.get(path, headers=headers)
    assert answer.status_code in (403, 404)
    assert "root:" not in answer.text
    assert "import" not in answer.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_the_server_only_reads(client, method):
    assert client.send(method, f"/{TOKEN}/data/runs").status_code in (404, 405)


@pytest.mark.e2e
def test_the_server_never_writes_into_a_run(tmp_path):
    folder = make_run(tmp_path / "one")
    before = _files(folder.path)
    client = Client(Library([tmp_path]))
    for path, _ in collect(Library([tmp_path])):
        client.get(f"/{TOKEN}/data/{path}")
    assert _files(folder.path) == before


def _files(place: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(place)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in place.rglob("*")
    }


def test_the_address_can_be_opened_before_the_server_runs(runs):
    server = Server(Library([runs]))
    socket.create_connection(("127.0.0.1", server.port)).close()  # it is not refused
    server.socket.close()


@pytest.mark.e2e
def test_the_command_serves_until_it_is_stopped(runs, tmp_path):
    log = tmp_path / "log"
    process = start_mage(["view", str(runs), "--no-open"], tmp_path, log)
    try:
        while not (log.is_file() and log.read_text().endswith("\n")):
            assert process.is_alive()
            time.sleep(0.02)
        address = log.read_text().splitlines()[0]
        assert httpx.get(f"{address}data/runs", timeout=None).status_code == 200
        other = address.replace(address.split("/")[3], "x")
        assert httpx.get(other, timeout=None).status_code == 403
        os.kill(process.pid or 0, signal.SIGINT)
        wait(process)
        with pytest.raises(httpx.ConnectError):
            httpx.get(address)
    finally:
        process.kill()


# --- Static copies


@pytest.mark.e2e
def test_a_static_folder_holds_every_view(runs, tmp_path):
    done = CliRunner().invoke(app, ["view", str(runs), "--export", str(tmp_path / "page")])
    assert done.exit_code == 0, done.output
    for name in ("runs", "run/one", "run/one/meta/after_test/0", "compare/one/two"):
        assert (tmp_path / "page" / "data" / f"{name}.js").is_file()
    page = (tmp_path / "page" / "index.html").read_text()
    assert "http://" not in page
    assert "https://" not in page
    write_folder(tmp_path / "page", [])  # an earlier copy is replaced


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("view", "runs", "--export", "own"), "holds files that are not a copy of this page"),
        (("view", "own", "--export", "page"), "there is no run in"),
        (("export", "runs/one", "--out", "own/index.html"), "exists already"),
    ],
)
def test_files_of_others_are_never_overwritten(runs, tmp_path, words, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own").mkdir()
    Path("own/index.html").write_text("my page")
    Path("runs").symlink_to(runs)
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert message in done.output.replace("\n", " ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "runs"]
    assert [path.read_text() for path in Path("own").iterdir()] == ["my page"]


def test_no_text_can_end_the_script_of_a_static_copy(runs, tmp_path):
    data = list(collect(Library([runs / "one"])))
    page = write_file(tmp_path / "page.html", data).read_text("utf-8")
    assert HOSTILE[:30] not in page
    assert "\\u003cimg src=x" in page
    assert "document.title='broken'</script>" not in page
    assert str(runs) not in page, "no folder of the machine"
    for path in (tmp_path / "folder").rglob("data/**/*.js"):
        assert "<" not in path.read_text()
    assert str(runs) not in write_folder(tmp_path / "folder", data).read_text()


# --- Datasets


def test_a_dataset_holds_every_turn_with_its_credit(runs, tmp_path):
    target = tmp_path / "turns.jsonl"
    done = CliRunner().invoke(app, ["export", str(runs / "one"), "--out", str(target)])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    folder = RunFolder.open(runs / "one")
    metas = [meta for name in library_sets(folder) for meta in folder.read_episodes_of(name)]
    turns = sum(len(one.turns) + (one.reflection is not None) for m in metas for one in m.episodes)
    assert len(rows) == turns
    stored = {
        (one.group, one.member, one.episode, one.index): one.advantage
        for one in read_credits(folder.path, "step_000006")
    }
    trained = [row for row in rows if row["set"] == "step_000006"]
    assert len(trained) == len(stored)
    for row in trained:
        place = (row["group"], row["member"], row["episode"], row["turn"])
        assert row["advantage"] == stored[place]
    assert all(row["advantage"] is None for row in rows if row["set"] == "after_test")


def library_sets(folder: RunFolder) -> list[str]:
    return ["after_test", "before_test", *(f"step_{step:06d}" for step in folder.episode_steps())]


@pytest.mark.e2e
@pytest.mark.parametrize("form", ["jsonl", "parquet", "hf"])
def test_other_libraries_read_the_rows_of_every_format(runs, tmp_path, form):
    parquet = pytest.importorskip("pyarrow.parquet")
    datasets = pytest.importorskip("datasets")
    rows = list(dataset_rows(RunFolder.open(runs / "one")))
    target = tmp_path / f"turns.{form}"
    command = ["export", str(runs / "one"), "--format", form, "--out", str(target)]
    assert CliRunner().invoke(app, command).exit_code == 0
    if form != "jsonl":
        files = [target] if form == "parquet" else sorted(target.glob("data/*.parquet"))
        found = [row for file in files for row in parquet.read_table(file).to_pylist()]
        assert sorted(json.dumps(row) for row in found) == sorted(json.dumps(row) for row in rows)
    if form == "hf":
        assert "path: data/train.parquet" in (target / "README.md").read_text()
    where = {} if form == "hf" else {"data_files": str(target)}
    kind = {"hf": str(target), "jsonl": "json", "parquet": "parquet"}[form]
    loaded = datasets.load_dataset(kind, cache_dir=str(tmp_path / "cache"), **where)
    replies = sorted(row["reply"] for split in loaded.values() for row in split)
    assert replies == sorted(row["reply"] for row in rows)


def test_an_export_names_missing_credit_and_probabilities(runs, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(runs / "one", copy)
    path = min((copy / "episodes").glob("step_*.credit.jsonl.gz"))
    path.unlink()
    for name in stored_names(RunFolder.open(copy)):
        write_moves(copy, name, [CHANCES])
    (copy / "episodes" / "before_test.moves.jsonl.gz").unlink()
    done = CliRunner().invoke(app, ["export", str(copy), "--out", str(tmp_path / "turns.jsonl")])
    assert done.exit_code == 0
    assert f"the credit of {path.name.split('.')[0]} is missing" in done.stderr
    assert "the probabilities of moves of before_test are missing" in done.stderr


@pytest.mark.e2e
def test_a_report_deletes_the_shards_that_a_kill_at_the_end_left(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("mage.report.curves.draw_curves", lambda results: {})
    copy = tmp_path / "copy"
    shutil.copytree(runs / "one", copy)
    shards = RunFolder.open(copy).shards("after_test")
    shards.write_text("{}\n")
    assert CliRunner().invoke(app, ["report", str(copy)]).exit_code == 0
    assert not shards.exists()
    (copy / "summary.json").unlink()
    shards.write_text("{}\n")  # an unfinished run needs them
    assert CliRunner().invoke(app, ["report", str(copy)]).exit_code == 0
    assert shards.exists()


def test_pipes_and_broken_links_beside_runs_are_ignored(tmp_path):
    """Reading a pipe would wait forever."""
    make_run(tmp_path / "one")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "broken.json").symlink_to("gone")
    found = Library([tmp_path]).get("runs")
    assert ([row["id"] for row in found["runs"]], found["tables"]) == (["one"], [])


def test_a_port_in_use_is_one_message():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"--port {port} cannot be used \(Address already in"):
            Server(Library([]), port)
