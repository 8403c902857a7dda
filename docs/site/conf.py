"""The site of the documentation: `make docs`. Its sources are gathered by tests/ci/docs_site.py."""

from __future__ import annotations

project = "dgxspark.serving"
copyright = "dgxspark.serving contributors"
html_title = "dgxspark.serving"
html_theme = "sphinx_ansible_theme"
html_theme_options = {"topbar_links": {}, "vcs_pageview_mode": "view"}
html_show_sphinx = False

extensions = ["myst_parser", "sphinx_antsibull_ext", "sphinx.ext.intersphinx"]
# Ansible's own pages; which labels they have is said by tests/ci/docs_site.py, so that a build needs no network.
intersphinx_mapping = {"ansible": ("https://docs.ansible.com/projects/ansible/devel/", "ansible.inv")}
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
# The READMEs link to files of the checkout, which lie beside the pages and are none themselves.
exclude_patterns = ["playbooks/**", "tests/**", "inventories/**", "plugins/**", "roles/*/[!R]*/**", "docs/site/**"]
# Headings of the Markdown pages can be linked to, as on the pages of a forge.
myst_heading_anchors = 3
pygments_style = "ansible"
highlight_language = "text"
