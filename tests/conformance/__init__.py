# SPDX-License-Identifier: Apache-2.0
"""One resctrl conformance suite for the in-process model, the FUSE tree and real kernels.

The cases need the standard library and this project only, so that they run inside a small emulated host as one command
(``python -m tests.conformance.run``); pytest runs the same cases on the model and on FUSE.
"""
