"""The list of jobs that shares one GPU for a fixed time, with real processes."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.marks import end_to_end

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "gpu_jobs.py"


def start(folder: Path, text: str, minutes: float = 5.0) -> "subprocess.Popen[str]":
    (folder / "jobs.toml").write_text(text)
    words = ["jobs.toml", "--minutes", str(minutes), "--memory", "100", "--grace", "3"]
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *words, "--work", "w", "--out", "o"],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run(folder: Path, text: str, minutes: float = 5.0) -> tuple[int, str, dict[str, dict]]:
    process = start(folder, text, minutes)
    told = process.communicate(timeout=330)[0]
    path = folder / "o" / "jobs.json"
    rows = json.loads(path.read_text()) if path.is_file() else []
    return process.returncode, told, {row["job"]: row for row in rows}


def wait_for(path: Path, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} does not appear"
        time.sleep(0.05)


def load(name: str) -> Any:
    """A name of the script, in this process."""
    if SCRIPT.stem not in sys.modules:
        spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[SCRIPT.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return getattr(sys.modules[SCRIPT.stem], name)


@end_to_end
def test_jobs_share_the_memory_and_keep_their_files(tmp_path):
    """`small` runs beside `first`, `large` after both, `alone` by itself."""
    code, told, rows = run(
        tmp_path,
        """
[jobs.first]
command = "until [ -e {work}/small/here ]; do sleep .1; done; mkdir -p d; echo 1 > d/a; echo 2 > b"
seconds = 1
limit = 200
memory = 60
keep = ["d", "b"]
[jobs.large]
command = "test -e {work}/first/b"
seconds = 1
limit = 200
memory = 60
[jobs.small]
command = "echo {minutes} > here; echo told"
seconds = 1
limit = 200
memory = 40
[jobs.alone]
command = "test -e {work}/small/here"
seconds = 1
limit = 200
[jobs.next]
command = "cat {work}/first/d/a"
seconds = 1
limit = 200
memory = 1
after = ["first"]
""",
    )
    assert code == 0, told
    assert {row["state"] for row in rows.values()} == {"done"}
    assert (tmp_path / "o/first/d/a").read_text() == "1\n"
    assert (tmp_path / "o/first/b").read_text() == "2\n"
    assert (tmp_path / "o/small/log.txt").read_text() == "told\n"
    assert not (tmp_path / "o/small/here").exists()
    assert 0.0 < float((tmp_path / "w/small/here").read_text()) < 4.96
    assert rows["large"]["began"] > rows["first"]["began"]


@end_to_end
def test_a_hanging_a_failing_and_a_late_job_do_not_hold_up_the_others(tmp_path):
    (tmp_path / "w" / "hangs").mkdir(parents=True)
    (tmp_path / "w" / "hangs" / "result").write_text("partial\n")
    code, told, rows = run(
        tmp_path,
        """
[jobs.hangs]
command = "trap '' TERM; sleep 1000 & wait; sleep 1000"
seconds = 1
limit = 2
memory = 10
keep = ["result"]
[jobs.fails]
command = "exit 3"
seconds = 1
limit = 200
memory = 10
[jobs.blocked]
command = "true"
seconds = 1
limit = 200
memory = 10
after = ["fails"]
[jobs.late]
command = "true"
seconds = 1000
memory = 10
[jobs.reserved]
command = "test {minutes} = 0.00"
seconds = 1
limit = 200
reserve = 1000
memory = 10
[jobs.fine]
command = "true"
seconds = 1
limit = 200
memory = 10
""",
    )
    assert code == 1, told
    assert {name: row["state"] for name, row in rows.items()} == {
        "hangs": "stopped",
        "fails": "failed",
        "blocked": "blocked",
        "late": "late",
        "reserved": "done",
        "fine": "done",
    }
    assert rows["fails"]["code"] == 3
    assert rows["hangs"]["seconds"] < 200
    assert (tmp_path / "o/hangs/result").read_text() == "partial\n"


@end_to_end
def test_at_the_end_of_the_time_jobs_are_asked_to_stop(tmp_path, capsys):
    """The time ends when the first job is ready. A job that waits for a file is late."""
    path = tmp_path / "jobs.toml"
    path.write_text(
        """
[jobs.saves]
command = "trap 'echo saved > result; exit 0' TERM; touch ready; sleep 1000 & wait"
seconds = 1
limit = 1000
memory = 10
keep = ["result"]
[jobs.waits]
command = "true"
seconds = 1
memory = 10
needs = ["/nowhere/file"]
"""
    )
    lease = load("Lease")(path, tmp_path / "w", tmp_path / "o", 1000.0, 100.0, 120.0)

    def end_the_time() -> None:
        wait_for(tmp_path / "w/saves/ready")
        lease.seconds = 0.0

    clock = threading.Thread(target=end_the_time)
    clock.start()
    assert not lease.run()
    clock.join()
    assert "the time is over" in capsys.readouterr().out
    assert (tmp_path / "o/saves/result").read_text() == "saved\n"
    assert {name: job.state for name, job in lease.jobs.items()} == {
        "saves": "done",
        "waits": "late",
    }


def test_a_change_is_noticed_without_a_newer_time_and_of_the_same_size(tmp_path):
    path = tmp_path / "jobs.toml"
    path.write_text('[jobs.one]\ncommand = "true"\nseconds = 1\n')
    lease = load("Lease")(path, tmp_path / "w", tmp_path, 10.0, 100.0, 1.0)
    lease._read()
    before = path.stat()
    path.write_text('[jobs.two]\ncommand = "true"\nseconds = 1\n')
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    lease._read()
    assert [name for name, job in lease.jobs.items() if job.state == "waiting"] == ["two"]


@end_to_end
def test_the_file_may_change_and_a_signal_stops_everything(tmp_path):
    job = 'command = "echo $$ > p; mv p pid; exec sleep 1000"\nseconds = 1\nlimit = 1000\n'
    job += "memory = 10\n"
    process = start(tmp_path, f"[jobs.one]\n{job}")
    wait_for(tmp_path / "w/one/pid")
    (tmp_path / "jobs.toml").write_text("[jobs")
    assert process.stdout
    while "jobs.toml" not in process.stdout.readline():
        pass
    (tmp_path / "jobs.toml").write_text(f"[jobs.two]\n{job}[jobs.three]\n{job}")
    wait_for(tmp_path / "w/two/pid")
    wait_for(tmp_path / "w/three/pid")
    wait_for(tmp_path / "o/one/log.txt")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=200)
    assert process.returncode == 1
    rows = json.loads((tmp_path / "o/jobs.json").read_text())
    assert {row["state"] for row in rows} == {"stopped"}
    for name in ("one", "two", "three"):
        number = int((tmp_path / f"w/{name}/pid").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no table [jobs.NAME]"),
        ("jobs = 3", "has no table [jobs.NAME]"),
        ("[jobs]\na = 3", "job a is no table"),
        ("[jobs.a]\ncommand = 1\nseconds = 1", "job a has command = 1, which must be a text"),
        ('[jobs.a]\ncommand = "true"\nseconds = "1"', "seconds = '1', which must be a number"),
        (
            '[jobs.a]\ncommand = "true"\nseconds = 1\nkeep = "x"',
            "keep = 'x', which must be a list of texts",
        ),
        ("[jobs", "jobs.toml: "),
        ('[jobs.a]\ncommand = "true"', "job a needs 'seconds'"),
        ('[jobs.a]\ncommand = "true"\nseconds = 1\nmem = 2', "job a has 'mem'; known are command"),
        ('[jobs.a]\ncommand = "true"\nseconds = 1\nafter = ["b"]', "waits for 'b', which is not"),
    ],
)
def test_a_fault_in_the_file_is_one_message(tmp_path, text, message):
    code, told, rows = run(tmp_path, text)
    assert code == 2
    assert not rows
    assert message in told
    assert "Traceback" not in told


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path):
    (tmp_path / "o").touch()
    code, told, _ = run(tmp_path, '[jobs.a]\ncommand = "true"\nseconds = 1')
    assert code == 2
    assert told == "o: File exists\n"
