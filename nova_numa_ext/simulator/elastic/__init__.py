# SPDX-License-Identifier: Apache-2.0
"""Elastic groups without servers: the product's loop over a modelled service.

``shapes`` makes loads and ``plant`` the members that carry them; ``loop`` closes the loop under several policies, and
every figure of it is *modelled*. ``plots`` draws what was decided on a trace.
"""
