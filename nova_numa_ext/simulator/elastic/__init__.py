# SPDX-License-Identifier: Apache-2.0
"""Elastic groups without servers: the product's loop over a modelled service, or over a trace.

``shapes`` makes loads and ``plant`` the members that carry them; ``loop`` closes the loop under several policies, and
every figure of it is *modelled*. ``trace`` reads what monitoring has seen of a group, ``replay`` says what would have
been decided, ``plots`` draws it.
"""
