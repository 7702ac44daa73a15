# SPDX-License-Identifier: Apache-2.0
"""A real Keystone on SQLite, serving HTTP on loopback from a process of its own, with three people.

``python -m tests.support.keystone`` prints its port and serves, with the configuration that OS_KEYSTONE_CONFIG_FILES
names.
"""

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, make_server

from keystoneauth1 import adapter, session
from keystoneauth1.identity import v3

_DOMAIN = {"user_domain_id": "default", "project_domain_id": "default"}


@contextmanager
def keystone(folder: Path):
    """Start one; yields its API v3, asked as the administrator."""
    conf = folder / "keystone.conf"
    conf.write_text(
        f"[DEFAULT]\nlog_file = {folder}/log\n[database]\nconnection = sqlite:///{folder}/keystone.db\n"
        f"[fernet_tokens]\nkey_repository = {folder}/fernet\n[credential]\nkey_repository = {folder}/credential\n"
        "[cache]\nenabled = false\n[identity]\npassword_hash_rounds = 4\n"
    )
    manage = [Path(sys.executable).with_name("keystone-manage"), f"--config-file={conf}"]
    owner = ["--keystone-user=root", "--keystone-group=root"]
    for name in ("fernet", "credential"):
        (folder / name).mkdir()
    for words in (["db_sync"], ["fernet_setup", *owner], ["credential_setup", *owner]):
        subprocess.run([*manage, *words], check=True, capture_output=True)
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "tests.support.keystone"],
        env=os.environ | {"OS_KEYSTONE_CONFIG_FILES": str(conf)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}/v3"
        urls = [f"--bootstrap-{each}-url={url}" for each in ("public", "internal", "admin")]
        bootstrap = ["bootstrap", "--bootstrap-password=admin", "--bootstrap-region-id=one", *urls]
        subprocess.run([*manage, *bootstrap], check=True, capture_output=True)
        yield url
    finally:
        server.terminate()
        server.wait()


def identity(url, name, project=None, **auth):
    """Keystone's API as a user whose password is its name."""
    return of(password(url, name, project, **auth))


def password(url, name, project=None, **auth):
    """Credentials of a user whose password is its name."""
    scope = {"project_name": project} if project else {"unscoped": True}
    return v3.Password(url, username=name, password=name, **_DOMAIN, **scope, **auth)


def of(plugin):
    """Keystone's API with credentials."""
    return adapter.Adapter(
        session.Session(plugin), service_type="identity", interface="public", version="3"
    )


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_words):
        """Requests are not printed."""


def main():
    """Serve."""
    from keystone.server.wsgi import initialize_public_application

    server = make_server("127.0.0.1", 0, initialize_public_application(), handler_class=_Quiet)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
