# SPDX-License-Identifier: Apache-2.0
"""The operations over oslo.privsep: the agent runs without rights, a small helper process keeps four capabilities.

The helper is started on the first call (``sudo privsep-helper``, or ``[numa_ext_privileged]helper_command``), reads the
same configuration files for the host's paths, and answers until the agent ends.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeVar, cast

from oslo_config import cfg
from oslo_privsep import priv_context

from host_agent.conf import configuration
from host_agent.machine.privileged import wire
from host_agent.machine.privileged.api import Privileged
from host_agent.machine.privileged.operations import OPERATIONS, HostOperations
from host_agent.machine.privileged.rights import NEEDED
from host_agent.machine.privileged.table import Operation, Way

context: Final = priv_context.PrivContext(
    "host_agent.machine.privileged",
    cfg_section="numa_ext_privileged",
    pypath=f"{__name__}.context",
    capabilities=list(NEEDED),
)


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _entrypoint(function: _Function) -> _Function:
    """Mark a function that the helper may run for us; oslo.privsep's own decorator has no types."""
    marked: _Function = context.entrypoint(function)
    return marked


@cache
def _operations() -> HostOperations:
    """Build the operations inside the helper, from its own reading of the configuration."""
    configuration.register(cfg.CONF)
    return HostOperations(configuration.read(cfg.CONF).paths)


@_entrypoint
def _carry_out(name: str, arguments: Sequence[Any]) -> Any:
    """Carry out an operation of the table, in the helper."""
    operation = OPERATIONS[name]
    built = [wire.decode(*pair) for pair in zip(operation.arguments, arguments, strict=True)]
    return wire.encode(getattr(_operations(), name)(*built))


def _ask(operation: Operation, arguments: tuple[Any, ...]) -> Any:
    """Have the helper carry out an operation, on the agent's side."""
    return wire.decode(operation.result, _carry_out(operation.name, wire.encode(arguments)))


def over_privsep(conf: cfg.ConfigOpts) -> Privileged:
    """Return the agent's end.

    :param conf: the loaded configuration; oslo.privsep hands its files to the helper
    """
    # oslo.privsep knows only the global configuration object.
    if conf is not cfg.CONF:
        cfg.CONF([], project="numa-host-agent", default_config_files=conf.config_file or [])
    priv_context.init()
    return cast("Privileged", Way(OPERATIONS, _ask))
