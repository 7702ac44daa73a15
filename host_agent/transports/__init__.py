# SPDX-License-Identifier: Apache-2.0
"""Transports of remote GPUs: what runs for one lease on the host of the GPU, and what the guest's environment says.

::

    guest                                   host of the GPU
    application ─ library (OpenCL, CUDA)    server process: ServerCommand
      finds 127.0.0.1:PORT by                 argv and environment; it serves when its probe succeeds
      guest_environment(devices)

``transport``  the interface and its shapes
``fake``       an echo without a GPU (``echo``), to try the control plane
``pocl``       OpenCL by PoCL-Remote; ``pocl_probe`` sees that its server is as it has to be
``declared``   any other, by the templates of a file (samples in etc/numa-host-agent/transports)
``registry``   by name; other distributions provide theirs as entry points

A transport that can tell how busy a lease keeps its GPU is a ``UseSensor``, too: ``fake`` is one, by the processor time
of its echo, and ``pocl``, by the kernels that run. One that can tell how much memory a lease has in use is a
``MemorySensor``: ``pocl`` is, by its layer of slices. One that a file declares is neither; what other distributions
provide may be.

A transport starts nothing: :mod:`host_agent.remote_gpu.lease_process` does, by the commands from here.
"""
