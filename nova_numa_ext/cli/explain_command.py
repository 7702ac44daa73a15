# SPDX-License-Identifier: Apache-2.0
"""``numa-ext-explain``: why did this server go there, or nowhere?"""

import argparse
import json
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from keystoneauth1 import exceptions as keystone_errors
from oslo_config import cfg

from nova_numa_ext import endpoints
from nova_numa_ext.cli import destinations, explain, fleet, journals
from nova_numa_ext.cli import image as image_of
from nova_numa_ext.cli.explain import Explanation
from nova_numa_ext.conf import SchedulerOptions, register_opts
from placement_traits import devices, oslo_options
from placement_traits.command_line import add_version
from placement_traits.errors import (
    CapabilityMissingError,
    NumaExtError,
    ServiceUnavailableError,
)
from placement_traits.request import InvalidRequestError, parse
from placement_traits.words import counted

_NO_AGGREGATES: Final = (
    "numa-ext-explain: the user of [placement] may not list nova's host aggregates: scores are without their "
    "numa_ext_…_multiplier"
)
_UUID: Final = re.compile(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


class UnknownError(NumaExtError):
    """Neither the journal nor nova knows what was asked for."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print explanations; returns 0, or 1 when there is nothing to explain."""
    arguments = _parser().parse_args(argv)
    try:
        conf = _configuration(arguments.config_file)
        output = _explain(conf, arguments)
    except (NumaExtError, OSError, cfg.Error, keystone_errors.ClientException) as error:
        print(f"numa-ext-explain: {error}", file=sys.stderr)
        return 1
    print(output)
    return 0


def _explain(conf: cfg.ConfigOpts, arguments: argparse.Namespace) -> str:
    try:
        return _Explainer(conf, arguments.journal).explain(arguments)
    except keystone_errors.MissingAuthPlugin as error:
        files = ", ".join(conf.config_file)
        where = f"{files} holds none" if files else "/etc/nova/nova.conf is not there"
        raise CapabilityMissingError(
            f"nova and Placement are asked with the credentials of [placement], and {where}: "
            "give nova-scheduler's configuration with --config-file"
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="numa-ext-explain",
        description="Explain why nova-scheduler put a server where it is, or found no valid host. Reads this "
        "controller's decision journal ([numa_ext]journal_path), or those of all controllers (--journal). Which "
        "host nova took it asks Nova, with the credentials of [placement]; Placement only for a server without a "
        "decision, and with --flavor.",
    )
    parser.add_argument(
        "key",
        nargs="?",
        metavar="SERVER|REQUEST",
        help="server uuid or name, or request id (req-…)",
    )
    parser.add_argument(
        "--flavor", help="what if: ask every host whether this flavor could go there now"
    )
    parser.add_argument(
        "-f", "--format", choices=("table", "json"), default="table", help="(default: table)"
    )
    parser.add_argument("--last", action="store_true", help="only the newest decision")
    parser.add_argument(
        "--offline", action="store_true", help="do not ask nova which host it took in the end"
    )
    parser.add_argument(
        "--journal",
        action="append",
        metavar="PATH",
        help="another journal than the configured one: a file (its rotated files are read, too), a folder with "
        "those of all controllers (every *.jsonl below it), or - for standard input; can be given several times",
    )
    parser.add_argument(
        "--config-file",
        action="append",
        metavar="PATH",
        help="nova-scheduler's configuration (default: /etc/nova/nova.conf)",
    )
    add_version(parser)
    return parser


def _configuration(files: Sequence[str] | None) -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    register_opts(conf)
    endpoints.register_opts(conf)
    conf.register_opt(cfg.MultiStrOpt("alias", default=[]), "pci")  # nova's
    # nova's, too: journal_path may hold $host
    conf.register_opt(cfg.StrOpt("host", default=socket.gethostname()))
    conf([], project="nova", default_config_files=files)
    return conf


class _Explainer:
    """Joins the journals with the current state in Nova and Placement."""

    def __init__(self, conf: cfg.ConfigOpts, sources: Sequence[str] | None) -> None:
        self._conf = conf
        self._options = oslo_options.read(SchedulerOptions, conf)
        self._sources = sources or [self._options.journal_path]
        self._where = ", ".join(self._sources)
        self._absent = (
            f"There is no decision in {self._where}: Placement offered no host, the host was forced (zone:host, which "
            "skips every filter), another controller decided (--journal reads the journals of several), or the journal "
            "has moved on."
        )

    def explain(self, arguments: argparse.Namespace) -> str:
        as_json = arguments.format == "json"
        if arguments.flavor:
            return self._what_if(self._flavor(arguments.flavor), as_json)
        if not arguments.key:
            raise UnknownError("name a server or a request, or give --flavor for a what-if")
        server, key = None, arguments.key
        if not key.startswith("req-") and not _UUID.match(key):
            server = self._server(key)
            key = server["id"]
        found = explain.find(journals.read(self._sources, key), key)
        if found:
            chosen = found[-1:] if arguments.last else found
            if not arguments.offline:
                self._ask_nova(chosen)
            if as_json:
                return json.dumps([one.to_dict() for one in chosen], indent=2)
            return "\n\n".join(explain.text(one) for one in chosen)
        if key.startswith("req-"):
            raise UnknownError(f"{key}: {self._absent}")
        server = server or self._server(key)
        note = f"{self._absent} Every host asked now:"
        answer = self._what_if(server["flavor"], as_json, self._image(server))
        return answer if as_json else f"server   {server['id']}\n{note}\n{answer}"

    def _ask_nova(self, explanations: Sequence[Explanation]) -> None:
        """Add where nova sent each server; what nova does not answer once it is not asked again."""
        unknown = ""
        for one in explanations:
            if one.alternates:
                continue
            if not unknown:
                try:
                    compute = endpoints.compute(self._conf)
                    one.nova = destinations.ask(compute, one.head["server"], one.head["request"])
                    continue
                except keystone_errors.MissingAuthPlugin:
                    unknown = "nova was not asked: there are no credentials in [placement], see --config-file"
                except keystone_errors.ClientException as error:
                    unknown = f"nova does not answer: {error}"
            one.nova = destinations.Destination(None, unknown)

    def _what_if(
        self, flavor: dict[str, Any], as_json: bool, image: Mapping[str, Any] = MappingProxyType({})
    ) -> str:
        try:
            request = parse(
                flavor["extra_specs"],
                vcpus=flavor["vcpus"],
                memory_mb=flavor["ram"],
                image_traits=image_of.required_traits(image),
                image_properties=image_of.topology_properties(image),
            )
        except InvalidRequestError as error:
            problems = {"problems": list(error.problems)}
            return (
                json.dumps(problems, indent=2)
                if as_json
                else "REFUSED  " + "\nREFUSED  ".join(error.problems)
            )
        name = flavor.get("name") or flavor.get("original_name", "")
        answers = fleet.what_if(
            endpoints.placement(self._conf),
            request,
            name,
            options=self._options,
            aggregates=self._aggregates(),
            aliases=devices.classes_of_aliases(self._conf.pci.alias),
        )
        if as_json:
            return json.dumps(explain.answers_list(answers), indent=2)
        return explain.answers_text(answers)

    def _aggregates(self) -> dict[str, dict[str, str]]:
        """Metadata of nova's host aggregates by uuid; none, with a message, where nova does not show them."""
        response = endpoints.compute(self._conf).get("/os-aggregates", raise_exc=False)
        if response.status_code == 403:
            print(_NO_AGGREGATES, file=sys.stderr)
            return {}
        body = _body(response)
        return {each["uuid"]: each["metadata"] for each in body["aggregates"]} if body else {}

    def _image(self, server: dict[str, Any]) -> dict[str, Any]:
        """The server's image; empty without one (it boots from a volume, or the image is deleted)."""
        if not server.get("image"):
            return {}
        glance = endpoints.image(self._conf)
        path = f"/v2/images/{server['image']['id']}"
        return _body(glance.get(path, raise_exc=False), "Glance") or {}

    def _server(self, key: str) -> dict[str, Any]:
        compute = endpoints.compute(self._conf)
        if _UUID.match(key):
            body = _body(compute.get(f"/servers/{key}", raise_exc=False))
            servers = [body["server"]] if body else []
        else:
            query = {"name": f"^{re.escape(key)}$", "all_tenants": "1"}
            body = _body(compute.get("/servers/detail", params=query, raise_exc=False))
            servers = body["servers"] if body else []
        if len(servers) != 1:
            raise UnknownError(
                f"{key}: no decision in {self._where}, and nova knows {counted(len(servers), 'such server')}"
            )
        server: dict[str, Any] = servers[0]
        return server

    def _flavor(self, name: str) -> dict[str, Any]:
        compute = endpoints.compute(self._conf)
        query = {"is_public": "None"}
        # Nova shows [api]max_limit of them at once.
        while page := _body(compute.get("/flavors/detail", params=query, raise_exc=False)):
            flavors: list[dict[str, Any]] = page["flavors"]
            for flavor in flavors:
                if name in (flavor["name"], flavor["id"]):
                    return flavor
            if not flavors:
                break
            query = {**query, "marker": flavors[-1]["id"]}
        raise UnknownError(f"{name}: nova knows no such flavor")


def _body(response: Any, service: str = "Nova") -> dict[str, Any] | None:
    """Return the decoded body, None for 404."""
    if response.status_code == 404:
        return None
    if response.status_code != 200:
        raise ServiceUnavailableError(
            f"{service} answered {response.status_code}: {response.text[:200]}"
        )
    body: dict[str, Any] = response.json()
    return body
