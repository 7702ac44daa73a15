# SPDX-License-Identifier: Apache-2.0
"""Entry point ``openstack.cli.extension``: the commands ``openstack numa …``, over Placement and Nova only."""

import argparse
from typing import Any

from osc_lib import utils

API_NAME = "numa"
API_VERSION_OPTION = "os_numa_api_version"
API_VERSIONS = {"1": "nova_numa_ext.cli.cloud.Cloud"}


def make_client(instance: Any) -> Any:
    """Return the client of the commands; openstackclient calls this when a command first needs it."""
    client_class = utils.get_client_class(API_NAME, instance._api_version[API_NAME], API_VERSIONS)
    return client_class(instance.sdk_connection)


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the global option that openstackclient expects of a plug-in."""
    parser.add_argument(
        "--os-numa-api-version",
        metavar="<numa-api-version>",
        default=utils.env("OS_NUMA_API_VERSION", default="1"),
        help="Version of the numa commands, default=1 (Env: OS_NUMA_API_VERSION)",
    )
    return parser
