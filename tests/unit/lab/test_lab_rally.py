# SPDX-License-Identifier: Apache-2.0
"""``lab rally`` drives Rally: the same run with a Rally of a few lines of shell."""

import json
from pathlib import Path

import pytest
from numa_lab import cli, rally
from numa_lab.errors import AskedWrongError, LabError
from numa_lab.settings import Settings
from numa_lab.terminal import Progress

CHECKOUT = Path(__file__).resolve().parents[3]
FIGURES = {"scenarios": 3, "sla_failed": 0}
# Writes its words, one call a line; exports are empty files; the SLA check of the one task passes.
FAKE = """#!/bin/sh
echo "$OS_USERNAME, $OS_INTERFACE: $*" >> {folder}/calls
case "$*" in
  *"task list"*) echo one ;;
  *"sla-check"*) echo '{sla}' ;;
  *"task start"*) exit {status} ;;
  *"--to "*) for last; do :; done; : > "$last" ;;
esac
"""


def prepared(
    settings: Settings, *, status: int = 0, sla: str = "[]", figures: object = FIGURES
) -> Path:
    """A lab that is up, with a Rally that has been installed; returns Rally's folder."""
    (settings.lab / "openrc").write_text("export OS_USERNAME=admin\n")
    folder = settings.lab / "rally"
    programs = folder / "venv" / "bin"
    programs.mkdir(parents=True)
    (folder / "venv" / ".contents").write_text(rally.fingerprint(settings))
    for name, text in (
        ("rally", FAKE.format(folder=folder, status=status, sla=sla)),
        ("python", f"#!/bin/sh\necho '{json.dumps(figures)}'\n"),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return folder


def calls(folder: Path) -> list[str]:
    """What Rally was called with, less the options that all calls have."""
    lines = (folder / "calls").read_text().splitlines()
    return [line.replace(f"--config-file {folder}/rally.conf ", "") for line in lines]


def test_a_run_from_an_empty_database_to_its_reports(settings: Settings) -> None:
    folder = prepared(settings)
    (folder / "rally.db").write_text("of an earlier run")
    assert rally.Rally(settings, Progress()).run(["default"]) == FIGURES
    made = calls(folder)
    assert made[:3] == [
        "admin, public: db create",
        "admin, public: env create --name lab --from-sysenv",
        "admin, public: env check",
    ]
    assert f"task start {CHECKOUT}/rally-jobs/default.yaml" in made[3]
    exports = [line.split("--type ")[1].split()[0] for line in made if "task export one" in line]
    assert exports == ["html-static", "junit-xml", "json"]
    assert not (folder / "rally.db").exists()
    assert json.loads((folder / "out" / "figures.json").read_text()) == FIGURES
    assert json.loads((folder / "arguments.json").read_text())["plain_host"] == "local"


def test_arguments_are_laid_over_those_of_the_lab(settings: Settings) -> None:
    folder = prepared(settings)
    rally.Rally(settings, Progress(), {"image": "other"}).run(["default"])
    assert json.loads((folder / "arguments.json").read_text())["image"] == "other"


def test_the_filter_is_switched_off_and_on_again_whatever_happens(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, configured = prepared(settings, status=1), []
    monkeypatch.setattr(
        rally.Rally, "_configure", lambda self, plugin, hosts: configured.append(plugin)
    )
    with pytest.raises(LabError, match="ended with status 1"):
        rally.Rally(settings, Progress()).run(["filter"])
    assert configured == [True, True]
    assert '"phase": "with"' in calls(folder)[3]


@pytest.mark.parametrize(("failed", "status"), [(0, 0), (2, 1)])
def test_an_sla_that_is_not_kept_is_told_and_is_the_command_s_status(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failed: int,
    status: int,
) -> None:
    row = {"benchmark": "NumaExt.churn", "criterion": "x", "detail": "why", "status": "FAIL"}
    sla = json.dumps([row] if failed else [{**row, "status": "PASS"}])
    prepared(settings, status=2, sla=sla, figures=FIGURES | {"sla_failed": failed})
    monkeypatch.setenv("NUMA_EXT_LAB", str(settings.lab))
    assert cli.main(CHECKOUT, ["rally"]) == status
    assert ("NumaExt.churn x: why" in capsys.readouterr().out) == bool(failed)


def test_what_cannot_be_run_is_said_before_anything_is_installed(settings: Settings) -> None:
    made = rally.Rally(settings, Progress())
    with pytest.raises(AskedWrongError, match=r"no task chrun: rally-jobs has .*churn"):
        made.run(["chrun"])
    with pytest.raises(LabError, match="the cloud is not up yet"):
        made.run(["default"])


def test_a_change_of_what_is_required_installs_again(settings: Settings, tmp_path: Path) -> None:
    for name in ("requirements.txt", "setup.cfg"):
        (tmp_path / name).write_text("a")
    before = rally.fingerprint(
        Settings.from_environment(tmp_path, {"NUMA_EXT_LAB": str(settings.lab)})
    )
    (tmp_path / "setup.cfg").write_text("b")
    assert before != rally.fingerprint(
        Settings.from_environment(tmp_path, {"NUMA_EXT_LAB": str(settings.lab)})
    )
