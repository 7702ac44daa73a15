# SPDX-License-Identifier: Apache-2.0
# The remote GPUs of this server, as numa-ext-rgpu wrote them last: values have nothing that a shell reads otherwise.
if [ -r /run/numa-ext-rgpu/env ]; then
    set -a
    . /run/numa-ext-rgpu/env
    set +a
fi
