# SPDX-License-Identifier: Apache-2.0
"""The agent's configuration: registered with oslo.config, read from its files, listed for ``oslo-config-generator``."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg

from host_agent.conf.options import Options
from host_agent.conf.placement import PlacementOptions
from placement_traits import oslo_options, unknown_options
from placement_traits.errors import LONGEST_TEXT, InvalidValueError, NumaExtError, cut
from placement_traits.options import Section
from placement_traits.oslo_options import ConfigurationError

CONFIG_FILE: Final = Path("/etc/numa-host-agent/numa-host-agent.conf")
_PROJECT: Final = "numa-host-agent"
# Names another file for agent and numa-host-agent-ctl.
CONFIG_VARIABLE: Final = "NUMA_HOST_AGENT_CONFIG"
SECTIONS: Final = {each.name: type(getattr(Options(), each.name)) for each in fields(Options)}

_CLI = [
    cfg.BoolOpt(
        "dry-run",
        default=False,
        help="Observe and decide, print what would be done, write nothing at all.",
    ),
    cfg.BoolOpt(
        "once",
        default=False,
        help="One round, then end; throttles fall after [rdt]release_after_s.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration(Options):
    """What one run was started with: the options and its command line.

    :param oslo: for libraries that read options of their own: keystoneauth, oslo.log, oslo.messaging
    """

    oslo: cfg.ConfigOpts
    dry_run: bool = False
    once: bool = False


def list_opts() -> list[tuple[cfg.OptGroup, list[cfg.Opt]]]:
    """Return all options for ``oslo-config-generator`` (entry point ``oslo.config.opts``)."""
    from keystoneauth1 import loading

    from placement_traits.keystone import endpoint_options

    found = {
        name: (oslo_options.group(section), oslo_options.options(section))
        for name, section in SECTIONS.items()
    }
    _, placement = found[PlacementOptions.section]
    placement += loading.get_session_conf_options() + loading.get_auth_common_conf_options()
    placement += loading.get_auth_plugin_conf_options("password")
    placement += endpoint_options()
    return list(found.values())


def set_defaults() -> None:
    """Set our defaults of a library's options (entry point ``oslo.config.opts.defaults``).

    Standard output is for what a dry run prints.
    """
    from oslo_log import _options as log_options

    cfg.set_defaults(log_options.generic_log_opts, use_stderr=True)


def load(
    arguments: Sequence[str],
    *,
    conf: Any = None,
    default_config_files: Sequence[str] | None = None,
    version: str | None = None,
    mistake: Callable[[NumaExtError], None] | None = None,
) -> Configuration:
    """Read command line and configuration files, and every value now rather than when it is needed.

    :param arguments: without the program's name
    :param conf: object to fill, a new one by default
    :param default_config_files: read when ``--config-file`` is not given; default: what the environment variable
        :data:`CONFIG_VARIABLE` names, else :data:`CONFIG_FILE`
    :param version: what ``--version`` shows, where that is on the command line
    :param mistake: called with each value that is not allowed or contradicts another, defaults count then; None: the
        first one is raised
    :raises ConfigurationError: a file cannot be read, or holds a value that is not allowed
    :raises InvalidValueError: values contradict each other
    """
    conf = cfg.ConfigOpts() if conf is None else conf
    conf.register_cli_opts(_CLI)
    register(conf)
    if default_config_files is None:
        default_config_files = _default_files()
    try:
        conf(
            list(arguments),
            project=_PROJECT,
            version=version,
            default_config_files=default_config_files,
            # oslo.config's own are other ones for each program and user.
            default_config_dirs=[],
        )
    except (cfg.Error, OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(cut(" ".join(str(error).split()), LONGEST_TEXT)) from error
    sections = _sections(conf, mistake)
    return Configuration(**sections, oslo=conf, dry_run=conf.dry_run, once=conf.once)


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options of the configuration file."""
    for section in SECTIONS.values():
        oslo_options.register(conf, section)


def read(conf: cfg.ConfigOpts) -> Options:
    """Return what a loaded configuration says; errors as of :func:`load`."""
    return Options(**_sections(conf))


def unknown_keys(configuration: Configuration) -> list[str]:
    """Return the keys and folders of the configuration that nothing reads, a key with its file.

    :raises ConfigurationError: see :func:`credentials_readable`
    """
    oslo = configuration.oslo
    unread = cfg.find_config_dirs(_PROJECT)
    gone = {name: section.gone for name, section in SECTIONS.items()}
    return [
        *unknown_options.keys(oslo_options.files(oslo), _known(oslo), gone=gone),
        *(f"{folder} (put what it holds into {CONFIG_FILE.name})" for folder in unread),
    ]


def renamed_keys(configuration: Configuration) -> list[str]:
    """Return the keys of the configuration that are read by the name of an earlier release, with today's.

    :raises ConfigurationError: see :func:`credentials_readable`
    """
    oslo = configuration.oslo
    return list(unknown_options.renamed(oslo_options.files(oslo), _known(oslo)))


def secret_options(configuration: Configuration) -> frozenset[str]:
    """Return the names of all options whose values are secrets, those of the keystoneauth plug-in included."""
    return frozenset(
        str(option.dest)
        for options in _known(configuration.oslo).values()
        for option in options
        if option.secret
    )


def _known(conf: cfg.ConfigOpts) -> dict[str, list[cfg.Opt]]:
    """Return all options that this program or a library of it reads, by section."""
    from oslo_log import _options as log_options  # what oslo-config-generator reads, too

    from placement_traits.keystone import credential_options

    section = PlacementOptions.section
    known = {group.name: options for group, options in list_opts()}
    known["DEFAULT"] = [
        *_CLI,
        *(option for _, found in log_options.list_opts() for option in found),
    ]
    with credentials_readable():
        credentials, found = credential_options(conf, section)
    known[credentials] = [*known.get(credentials, ()), *found]
    return known


@contextlib.contextmanager
def credentials_readable() -> Iterator[None]:
    """Turn what oslo.config raises where keystoneauth reads values into our sentence.

    Its own names the option that was not found: what stands behind a ``$`` in a password.

    :raises ConfigurationError: a value refers to an option that does not exist, or to itself
    """
    try:
        yield
    except (cfg.Error, RecursionError):
        raise ConfigurationError(
            f"[{PlacementOptions.section}] or the section that its auth_section names: a value refers by $ to an "
            "option that does not exist, or to itself; write $$ for a $"
        ) from None


def _sections(
    conf: cfg.ConfigOpts, mistake: Callable[[NumaExtError], None] | None = None
) -> dict[str, Any]:
    return {name: _section(section, conf, mistake) for name, section in SECTIONS.items()}


def _section(
    section: type[Section], conf: cfg.ConfigOpts, mistake: Callable[[NumaExtError], None] | None
) -> Section:
    try:
        return oslo_options.read(section, conf, mistake=mistake)
    except InvalidValueError as error:
        if mistake is None:
            raise
        mistake(error)
        return section()


def _default_files() -> list[str]:
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return [named]
    return [str(CONFIG_FILE)] if CONFIG_FILE.exists() else []
