# SPDX-License-Identifier: Apache-2.0
"""Every error of ours survives the way between processes: pickle, and the helper's ``type(error)(*error.args)``."""

import importlib
import inspect
import json
import pickle
import pkgutil
from collections.abc import Iterator

import host_agent
import nova_numa_ext
import placement_traits
from host_agent.machine.privileged.client import frozen
from placement_traits.errors import NumaExtError

SAMPLES = {"problems": ("one thing.", "another."), "status": 409, "errno": 22, "value": "f0f"}


def family(kind: type[NumaExtError]) -> Iterator[type[NumaExtError]]:
    """A class and all that derive from it."""
    yield kind
    for derived in kind.__subclasses__():
        yield from family(derived)


def all_errors() -> list[type[NumaExtError]]:
    """The whole family, after every module of the three packages has been loaded.

    But for Rally's plug-ins: Rally has an environment of its own. And but for what does its work when it is loaded.
    """
    for package in (placement_traits, nova_numa_ext, host_agent):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            at_work = found.name.endswith((".__main__", ".wsgi"))
            if not at_work and "nova_numa_ext.rally." not in found.name:
                importlib.import_module(found.name)
    return sorted(set(family(NumaExtError)), key=lambda kind: kind.__qualname__)


def made(kind: type[NumaExtError]) -> NumaExtError:
    """An error of a class with an argument for each parameter."""
    if kind.__init__ is Exception.__init__:
        return kind("something went wrong")
    parameters = list(inspect.signature(kind).parameters)
    return kind(*(SAMPLES.get(name, f"the {name}") for name in parameters))


def test_every_error_survives_the_way_to_another_process() -> None:
    for kind in all_errors():
        error = made(kind)
        wired = frozen(json.loads(json.dumps(error.args)))
        for again in (kind(*wired), pickle.loads(pickle.dumps(error))):
            assert type(again) is kind
            assert str(again) == str(error) != ""
            assert vars(again) == vars(error)
