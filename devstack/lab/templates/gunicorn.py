# SPDX-License-Identifier: Apache-2.0
# The OpenStack applications parse sys.argv themselves: gunicorn gets everything from this file.
wsgi_app = "$application"
bind = "127.0.0.1:$port"
workers = 1
worker_class = "gthread"
threads = 16
timeout = 120
graceful_timeout = 5
keepalive = 30
worker_tmp_dir = "/dev/shm"
errorlog = "-"
control_socket_disable = True
pythonpath = "$pythonpath"
