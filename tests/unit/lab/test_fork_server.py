# SPDX-License-Identifier: Apache-2.0
"""The fork server of emulated hosts, here on this machine."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from numa_lab.process import identify, wait_for

GUEST = Path(__file__).parents[3] / "devstack/lab/guest"
SERVER = f"""\
import sys
sys.path.insert(0, {str(GUEST)!r})
import fork_server
fork_server.MODULES = ("this", "json.*")
fork_server.main(*sys.argv[1:])
"""
PROGRAM = """\
import json, os, sys
imported = {"this", "json.tool"} <= set(sys.modules)
print(json.dumps([sys.argv, dict(os.environ), imported, os.getpid() == os.getsid(0), sys.executable]))
sys.exit(len(sys.argv))
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change its root")


class Server:
    """A fork server whose children keep this machine's root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("fork-server", "fork-server-ready"):
            os.mkfifo(folder / name)
        argv = [sys.executable, "-c", SERVER, folder, "/"]
        self.process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        assert (folder / "fork-server-ready").read_text() == "\n"

    def fork(self, name: str, program: str, *words: str) -> Path:
        """Ask for a program; returns its log."""
        (self.folder / f"{name}.py").write_text(program)
        request = {
            "argv": [str(self.folder / f"{name}.py"), *words],
            "environment": {"NAME": name},
            "log": str(self.folder / f"{name}.log"),
            "pid_file": str(self.folder / f"{name}.pid"),
            "executable": str(GUEST / "python"),
        }
        (self.folder / f"{name}.request").write_text(json.dumps(request))
        with (self.folder / "fork-server").open("w") as requests:
            requests.write(f"{self.folder / name}.request\n")
        return self.folder / f"{name}.log"


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


def said(log: Path, word: str) -> str:
    wait_for(f"{log} has {word}", lambda: log.exists() and word in log.read_text(), 20)
    return log.read_text()


def test_a_request_is_run_as_if_it_were_started_itself_but_with_what_was_imported(server):
    argv, environment, imported, leads, executable = json.loads(
        said(server.fork("agent", PROGRAM, "--x"), "]\n")
    )
    assert argv == [f"{server.folder}/agent.py", "--x"]
    assert environment == {"NAME": "agent"}
    assert imported and leads
    assert executable == str(GUEST / "python")


@pytest.mark.parametrize(
    "words", [["-m", "oslo_concurrency.prlimit", "--cpu=7", "--"], []], ids=["limited", "not"]
)
def test_what_oslo_limits_is_limited_without_a_python(words):
    """As oslo.concurrency's own module does it; all else is Python."""
    ask = "import resource; print(resource.getrlimit(resource.RLIMIT_CPU)[0])"
    program = [*words, *([sys.executable] if words else []), "-c", ask]
    environment = {"PATH": "/usr/bin:/bin" if words else str(Path(sys.executable).parent)}
    done = subprocess.run(
        ["/bin/busybox", "sh", GUEST / "python", *program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = 7 if words else resource.getrlimit(resource.RLIMIT_CPU)[0]
    assert done.stdout == f"{expected}\n"


def test_the_pid_file_names_the_process_as_the_lab_does(server):
    server.fork("agent", "print('runs', flush=True)\nimport time\ntime.sleep(600)")
    said(server.folder / "agent.log", "runs")
    text = (server.folder / "agent.pid").read_text()
    identity = identify(int(text.split()[0]))
    assert text == str(identity)
    os.kill(identity.pid, 15)
    wait_for("it is gone, not a zombie", lambda: not Path(f"/proc/{identity.pid}").exists(), 20)


def test_a_program_that_fails_says_so_in_its_log_and_others_are_still_forked(server):
    assert "ValueError: broken" in said(
        server.fork("broken", "raise ValueError('broken')"), "ValueError"
    )
    assert '"NAME": "agent"' in said(server.fork("agent", PROGRAM), "]\n")


def test_what_it_maps_holds_the_interpreter_and_the_c_library():
    done = subprocess.run(
        [sys.executable, "-c", SERVER, "--mapped"], capture_output=True, text=True, check=True
    )
    mapped = {Path(line) for line in done.stdout.splitlines() if line.startswith("/")}
    assert Path(sys.executable).resolve() in mapped
    assert any(path.name.startswith("libc.so") for path in mapped)
