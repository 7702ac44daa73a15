# SPDX-License-Identifier: Apache-2.0
"""How every process of the job service begins: its configuration, its log, and the credentials of the service's user.

Nothing here reads ``sys.argv``: below a WSGI server it holds the server's options.

====================  ====================================================================================
``[numa_ext_jobs]``   what is our own (:mod:`.conf`)
``[database]``        where jobs are stored
``[placement]``       the service's user: it asks Placement and nova, and acts for users by their trusts
``keystone_authtoken``  by whom the API has tokens of users checked; ``auth_section = placement`` for the same user
====================  ====================================================================================
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from keystoneauth1 import adapter, loading
from keystoneauth1 import exceptions as keystone_errors
from oslo_config import cfg
from oslo_log import _options as log_options  # what oslo-config-generator reads, too
from oslo_log import log

from nova_numa_ext import endpoints
from nova_numa_ext.orchestrator import conf as jobs_conf
from nova_numa_ext.orchestrator.cloud.cabling import ServerCabling
from nova_numa_ext.orchestrator.cloud.flavors import ServerFlavors
from nova_numa_ext.orchestrator.cloud.hosts import ServerHosts
from nova_numa_ext.orchestrator.cloud.keystone import REQUEST_TIMEOUT_S, KeystoneTrusts
from nova_numa_ext.orchestrator.cloud.room import ServerRoom
from nova_numa_ext.orchestrator.cloud.uplinks import LeafUplinks
from nova_numa_ext.orchestrator.store import database
from placement_traits import pool_reader
from placement_traits.claim_store import ClaimStore
from placement_traits.client import PlacementClient, RetrySettings
from placement_traits.command_line import version
from placement_traits.errors import (
    LONGEST_TEXT,
    CapabilityMissingError,
    InvalidValueError,
    NumaExtError,
    cut,
)
from placement_traits.keystone import endpoint_options
from placement_traits.oslo_options import ConfigurationError
from placement_traits.pools import Pool

PROJECT: Final = "numa-ext-jobs"
CONFIG_FILE: Final = f"/etc/{PROJECT}/{PROJECT}.conf"
CONFIG_VARIABLE: Final = "NUMA_EXT_JOBS_CONFIG"
"""Environment variable that names other files, with ``:`` between them."""

_UNUSABLE: Final = (ConfigurationError, InvalidValueError, CapabilityMissingError)
_USER: Final = (
    "auth_url",
    "user_id",
    "username",
    "password",
    "user_domain_id",
    "user_domain_name",
)


def add_config_file(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the configuration, for :func:`configured`."""
    parser.add_argument(
        "--config-file",
        action="append",
        metavar="PATH",
        help=f"the job service's configuration; can be given several times; default: {CONFIG_FILE}",
    )


def failed(program: str, error: NumaExtError) -> int:
    """Write why a program ends to standard error; return its exit status: 78 where starting it again would not help."""
    sys.stderr.write(f"{program}: {' '.join(str(error).split())}\n")
    return os.EX_CONFIG if isinstance(error, _UNUSABLE) else 1


def configured(files: Sequence[str] | None = None) -> cfg.ConfigOpts:
    """Return the configuration, with all values of our own read once.

    :param files: None: those that :data:`CONFIG_VARIABLE` names, else :data:`CONFIG_FILE`
    :raises ConfigurationError: a file cannot be read, or holds a value that is not allowed
    :raises InvalidValueError: values contradict each other
    """
    set_defaults()
    conf = cfg.ConfigOpts()
    register_opts(conf)
    given = default_files() if files is None else files
    try:
        conf(
            [],
            project=PROJECT,
            prog=PROJECT,
            version=version(),
            default_config_files=list(given),
            default_config_dirs=[],
        )
    except (cfg.Error, OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(cut(" ".join(str(error).split()), LONGEST_TEXT)) from error
    jobs_conf.read(conf)
    return conf


def default_files() -> list[str]:
    """Return the files that are read unless others are named, whether they are there or not."""
    return os.environ.get(CONFIG_VARIABLE, CONFIG_FILE).split(":")


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register what every process reads; registering twice is harmless."""
    log.register_options(conf)
    jobs_conf.register_opts(conf)
    database.register_opts(conf)
    endpoints.register_opts(conf)


def set_defaults() -> None:
    """Set our defaults of a library's options (entry point ``oslo.config.opts.defaults``).

    systemd keeps what a service prints.
    """
    cfg.set_defaults(log_options.generic_log_opts, use_stderr=True)


def list_opts() -> list[tuple[Any, Sequence[cfg.Opt]]]:
    """Return our own options and those of ``[placement]``, for oslo-config-generator."""
    placement = [
        *loading.get_session_conf_options(),
        *loading.get_auth_common_conf_options(),
        *loading.get_auth_plugin_conf_options("password"),
        *endpoint_options(),
    ]
    return [*jobs_conf.list_opts(), (endpoints.SECTION, placement)]


def log_to(conf: cfg.ConfigOpts) -> None:
    """Send what is logged where the configuration says."""
    log.setup(conf, PROJECT, version())


def trusts(conf: cfg.ConfigOpts) -> KeystoneTrusts:
    """Return what acts for users by their trusts, as the user of ``[placement]``.

    :raises ConfigurationError: the section names no user with a password
    """
    section = conf[endpoints.SECTION]
    return KeystoneTrusts(
        _credentials(conf),
        session(conf),
        check_s=jobs_conf.read(conf).engine.trust_check_s,
        interface=section.valid_interfaces,
        region_name=section.region_name,
    )


def claims(placement: adapter.Adapter) -> ClaimStore:
    """Return Placement's allocations of jobs: no request lasts as long as a term of the leader, and none is repeated.

    Whether a request may be sent again is asked before each one.
    """
    return ClaimStore(_prompt(placement))


def hosts(placement: adapter.Adapter) -> ServerHosts:
    """Return where servers are by Placement: a worker that asks does not wait for it for long either."""
    return ServerHosts(_prompt(placement))


def cabling(placement: adapter.Adapter) -> ServerCabling:
    """Return where servers hang on fabrics by Placement; a user who asks does not wait for long either."""
    return ServerCabling(_prompt(placement))


def flavors(compute: adapter.Adapter) -> ServerFlavors:
    """Return what flavors of servers ask for by nova: rounds do not wait for it for long."""
    compute.session.timeout = min(compute.session.timeout, REQUEST_TIMEOUT_S)
    return ServerFlavors(compute)


def room(placement: adapter.Adapter) -> ServerRoom:
    """Return what asks Placement for room; decisions on elastic groups do not wait for it for long."""
    return ServerRoom(_prompt(placement))


def uplinks(placement: adapter.Adapter, most_kept: float) -> LeafUplinks:
    """Return what says on leafs what best-effort servers may send; looks do not wait for Placement for long.

    :param most_kept: share of uplinks that is kept for latency-critical servers at most
    """
    return LeafUplinks(_prompt(placement), most_kept)


def lent(placement: adapter.Adapter) -> Callable[[], tuple[Pool, ...]]:
    """Return what reads which GPUs are lent."""
    return partial(pool_reader.read, _prompt(placement))


def _prompt(placement: adapter.Adapter) -> PlacementClient:
    placement.session.timeout = min(placement.session.timeout, REQUEST_TIMEOUT_S)
    return PlacementClient(placement, RetrySettings(attempts=1))


def session(conf: cfg.ConfigOpts) -> Any:
    """Return what sends requests, as ``[placement]`` says: certificates, and a timeout that is short enough."""
    made = loading.load_session_from_conf_options(conf, endpoints.SECTION)
    made.timeout = min(made.timeout or REQUEST_TIMEOUT_S, REQUEST_TIMEOUT_S)
    return made


def _credentials(conf: cfg.ConfigOpts) -> Mapping[str, str]:
    name = conf[endpoints.SECTION].auth_section or endpoints.SECTION
    try:
        loading.load_auth_from_conf_options(conf, endpoints.SECTION)
        kind = conf[name].auth_type
        if kind not in ("password", "v3password"):
            raise ConfigurationError(
                f"[{name}]auth_type{cut(f' = {kind}' if kind else ' is not set')} in {', '.join(conf.config_file)}: "
                "trusts of users need a user with a password; allowed: password, v3password"
            )
        return {each: value for each in _USER if (value := conf[name].get(each))}
    except (cfg.Error, RecursionError, keystone_errors.ClientException) as error:
        raise ConfigurationError(f"[{name}]: {cut(' '.join(str(error).split()))}") from error
