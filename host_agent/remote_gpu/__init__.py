# SPDX-License-Identifier: Apache-2.0
"""What a host does for leases of remote GPUs: it asks the job service, serves leases of its GPUs, and reports::

turns        asks and reports; keeps the last answer on disk
  gpu_host   one process per lease, at the epoch that counts
    processes    starts them, finds them again, ends them
      groups         a control group for each
      hung           kills one that does not answer and has no group
      lease_process  starts the server of the transport, and leads clients of the right epoch to it
        isolation      its namespaces: what it sees of its host
        link_clients   clients over TLS, by the gateway of the link (link/, in Go)
        plain_clients  clients over TCP, where there are no certificates
      link_files   reads the operator's certificates for gateways
publishing   what the host lends, in Placement; in a thread of its own
answer       what the service says, and what is reported to it
"""
