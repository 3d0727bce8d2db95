"""`mage model push` against a local server that speaks the protocol of the model hub."""

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from mage.api.push import push_run
from mage.config.loading import load_recipe
from mage.report.model_card import model_card
from mage.report.run_results import read_run_results
from mage.run_folder import RunError, RunFolder
from mage.training.callbacks import Callback
from mage.training.start import train
from tests.marks import end_to_end

TINY = (
    *("--run.updates=1", "--run.workers=1", "--play.groups=1", "--play.members=2"),
    *("--evaluate.size=6", "--evaluate.final_size=6", "--run.evaluate_every=0"),
)


class Hub(ThreadingHTTPServer):
    """Takes repositories and commits; every file is sent inside of the commit."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.files: dict[str, bytes] = {}
        self.tokens: set[str | None] = set()
        self.created: dict[str, Any] = {}


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.tokens.add(self.headers.get("authorization"))
        if self.server.status != 200:
            self._answer({"error": "not allowed"}, self.server.status)
        elif self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            self._answer({"url": f"http://127.0.0.1:{self.server.server_port}/me/agent"})
        elif "/preupload/" in self.path:
            paths = [one["path"] for one in json.loads(body)["files"]]
            files = [
                {"path": path, "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for path in paths
            ]
            self._answer({"files": files})
        elif self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        else:
            self._commit(body)

    def do_GET(self) -> None:
        self._answer({"id": "me/agent", "sha": "0" * 40, "siblings": []})

    def _commit(self, body: bytes) -> None:
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                value = line["value"]
                self.server.files[value["path"]] = base64.b64decode(value["content"])
        place = f"http://127.0.0.1:{self.server.server_port}/me/agent/commit/1"
        self._answer({"commitUrl": place, "commitOid": "1" * 40, "success": True})

    def _answer(self, value: Any, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
@end_to_end
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "agent"
    folder = RunFolder.create(path, load_recipe("kuhn_poker", TINY))
    train(folder.path, Callback(), lambda: False)
    return folder


@pytest.fixture
def hub(request, monkeypatch):
    server = Hub(getattr(request, "param", 200))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("mage.api.push.HfApi", lambda: _api(address))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def _api(address: str) -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=address, token="hf_secret")


def test_the_hub_gets_weights_recipe_and_a_card_with_the_results(run, hub):
    address = push_run(run, "me/agent", private=True)
    assert address.endswith("/me/agent")
    assert {"README.md", "config.json", "model.safetensors"} <= hub.files.keys()
    # Older versions of the hub's library send `private`, newer ones `visibility`.
    assert hub.created.get("visibility") == "private" or hub.created.get("private") is True
    card = hub.files["README.md"].decode()
    summary = run.read_summary()
    score = summary["after"]["test"]["episodes"][2]["score"]["value"]
    assert f"{score:+.3f}".replace("-", "−") in card
    assert "library_name: transformers" in card
    assert "[opponents.train]" in card
    assert "+0.125" in card
    assert str(run.path.parent) not in card


def test_a_card_has_no_figures_of_other_weights(run):
    results = read_run_results(run)
    assert results.chosen_update is not None
    options = {"name": "me/agent", "base": "embedded", "adapters": False}
    chosen = model_card(results, update=results.chosen_update, **options)
    other = model_card(results, update=results.chosen_update + 1, **options)
    assert "## Results on the test panel" in chosen
    assert "## Results" not in other
    assert f"played with the weights of update {results.chosen_update}, not with these" in other


@pytest.mark.parametrize("hub", [403], indirect=True)
def test_a_refused_upload_gives_one_message_that_says_what_to_do(run, hub):
    with pytest.raises(RunError, match=r"the model hub refused the upload: .*hf auth login"):
        push_run(run, "me/agent")
    assert hub.files == {}
