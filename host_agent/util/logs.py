# SPDX-License-Identifier: Apache-2.0
"""Logs of the agent's small companions, which read no configuration file: oslo.log on standard error."""

from oslo_config import cfg
from oslo_log import log


def to_stderr(product: str) -> None:
    """Log from now on as the agent does by default: INFO and above, with oslo.log's fields, on standard error.

    Where an operator has the agent log elsewhere, a companion's lines stay with the service that started it: they
    matter when the agent or its configuration is what fails.

    :param product: name of the program
    """
    conf = cfg.ConfigOpts()
    log.register_options(conf)
    conf([], default_config_files=[], default_config_dirs=[])
    conf.set_override("use_stderr", True)
    log.setup(conf, product)
