# SPDX-License-Identifier: Apache-2.0
"""The API as a whole: the routes below the middleware that each service of OpenStack has, the outermost first.

====================  ==================================================================================
http_proxy_to_wsgi    addresses that a proxy passes on, where ``[oslo_middleware]`` says that there is one
request_id            ``X-Openstack-Request-Id``, in answers and in the log
healthcheck           ``/healthcheck``, which needs no token
auth_token            who asks, by Keystone, and whether an application credential's access rules let it; a request
                      without a token goes on to ``GET /``
====================  ==================================================================================
"""

import socket
from collections.abc import Callable, Iterable
from typing import Any, Final

from keystoneauth1 import exceptions as keystone_errors
from keystoneauth1 import loading
from keystonemiddleware import auth_token
from oslo_config import cfg
from oslo_middleware import Healthcheck, HTTPProxyToWSGI, RequestId
from oslo_middleware.exceptions import ConfigInvalid
from oslo_policy import policy
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from nova_numa_ext import endpoints
from nova_numa_ext.orchestrator import conf as jobs_conf
from nova_numa_ext.orchestrator import notify, startup
from nova_numa_ext.orchestrator.api import app, policies
from nova_numa_ext.orchestrator.api.handlers.versions import SERVICE_TYPE
from nova_numa_ext.orchestrator.cloud.user import UserClouds
from nova_numa_ext.orchestrator.store.database import Database
from nova_numa_ext.orchestrator.store.stores import Stores
from placement_traits.errors import LONGEST_TEXT, cut
from placement_traits.oslo_options import ConfigurationError

_TOKENS: Final = "keystone_authtoken"

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def assembled(conf: cfg.ConfigOpts) -> Application:
    """Return the application of a configuration; neither the database nor Keystone is asked yet.

    :raises ConfigurationError: something in it cannot be used
    :raises CapabilityMissingError: it names no database
    """
    try:
        served = auth_token.AuthProtocol(
            _routes(conf), {"oslo_config_config": conf, "delay_auth_decision": True}
        )
        _check_tokens(conf)
        # Without it keystonemiddleware refuses all that comes by an application credential with access rules.
        conf.set_default("service_type", SERVICE_TYPE, _TOKENS)
        checked = DispatcherMiddleware(served, {"/healthcheck": Healthcheck(None, conf)})
        application: Application = HTTPProxyToWSGI(RequestId(checked, conf), conf)
    except ConfigInvalid as error:  # its own sentence is lost in the library
        why = "[healthcheck]backends: disable_by_file and enable_by_files cannot be used together"
        raise _unusable(conf, why) from error
    except (cfg.Error, keystone_errors.ClientException) as error:
        raise _unusable(conf, " ".join(str(error).split())) from error
    return application


def _routes(conf: cfg.ConfigOpts) -> Application:
    trusts, session = startup.trusts(conf), startup.session(conf)
    options, database = jobs_conf.read(conf), Database.configured(conf)
    clouds = UserClouds(
        session,
        trusts.user_id,
        options.api.trust_roles,
        interface=conf[endpoints.SECTION].valid_interfaces,
        region_name=conf[endpoints.SECTION].region_name,
    )
    tell = notify.configured(conf, options.notify, socket.gethostname(), "api")
    return app.make(
        Stores.of(database, tell),
        _enforcer(conf),
        clouds.of,
        startup.cabling(endpoints.placement(conf)),
        options.api,
        queue=options.queue,
        tell=tell,
    )


def _enforcer(conf: cfg.ConfigOpts) -> policy.Enforcer:
    found = policy.Enforcer(conf)
    found.register_defaults(policies.RULES)
    try:
        found.load_rules()
        found.check_rules(raise_on_violation=True)
    except (ValueError, policy.InvalidDefinitionError) as error:
        raise ConfigurationError(
            f"[oslo_policy]policy_file {conf.oslo_policy.policy_file}: "
            f"{cut(' '.join(str(error).split()), LONGEST_TEXT)}"
        ) from error
    return found


def _check_tokens(conf: cfg.ConfigOpts) -> None:
    if loading.load_auth_from_conf_options(conf, _TOKENS) is None:
        raise ConfigurationError(
            f"[{_TOKENS}] in {', '.join(conf.config_file)} names no credentials: set auth_section = "
            f"{endpoints.SECTION} for those of [{endpoints.SECTION}], or auth_type and what belongs to it"
        )


def _unusable(conf: cfg.ConfigOpts, why: str) -> ConfigurationError:
    return ConfigurationError(f"{', '.join(conf.config_file)}: {cut(why, LONGEST_TEXT)}")
