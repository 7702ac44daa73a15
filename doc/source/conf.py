# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration."""

project = "nova-numa-ext"
author = "nova-numa-ext developers"
copyright = "2026, nova-numa-ext developers"  # noqa: A001 - the name that Sphinx asks for
extensions = [
    "openstackdocstheme",
    "oslo_config.sphinxext",
    "sphinx.ext.autodoc",
]
html_theme = "openstackdocs"
openstackdocs_repo_name = "openstack/nova-numa-ext"
openstackdocs_auto_name = False
openstackdocs_bug_project = "nova-numa-ext"
openstackdocs_pdf_link = False
html_last_updated_fmt = None
html_theme_options = {"display_global_toc_section": True}
exclude_patterns: list[str] = []
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# openstackdocstheme asks git for the version; a source archive has none.
version = release = "dev"
