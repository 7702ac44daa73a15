# SPDX-License-Identifier: Apache-2.0
"""``openstack numa lease move --wait``: how far a lease is, until it goes nowhere any more."""

import io
from types import SimpleNamespace

from nova_numa_ext.cli import lease

LEASE = {"id": "lease-1", "reasons": [], "created_at": 0.0, "ended_at": None}


def states():
    """What the service answers, one after the other."""
    for state, move in (
        ("attached", {"carried": False, "sent_mb": 0, "of_mb": 0}),
        ("moving", {"carried": True, "sent_mb": 0, "of_mb": 0}),
        ("moving", {"carried": True, "sent_mb": 0, "of_mb": 0}),
        ("moving", {"carried": True, "sent_mb": 30, "of_mb": 64}),
        ("starting", None),
        ("ready", None),
        ("attached", None),
    ):
        yield LEASE | {"state": state, "move": move}


def moved(*words, monkeypatch):
    """Run the command over these answers; return what it shows last, and on its standard error."""
    answers = states()
    client = SimpleNamespace(move_lease=lambda *_: next(answers), lease=lambda _: next(answers))
    monkeypatch.setattr(lease, "_client", lambda _command: client)
    monkeypatch.setattr(lease, "_LOOK_S", 0)
    app = SimpleNamespace(stderr=io.StringIO(), client_manager=None)
    command = lease.MoveLease(app, None)
    names, values = command.take_action(command.get_parser("move").parse_args(["lease-1", *words]))
    return dict(zip(names, values, strict=True))["state"], app.stderr.getvalue()


def test_the_command_shows_how_far_a_lease_is_until_it_is_there(monkeypatch):
    shown = moved("--wait", monkeypatch=monkeypatch)
    assert shown == ("ready", "attached\nmoving\nmoving, 30 of 64 MiB\nstarting\n")


def test_without_a_word_it_does_not_wait(monkeypatch):
    assert moved(monkeypatch=monkeypatch) == ("attached", "")
