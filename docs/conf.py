"""Settings of the site: ``nox -s docs`` builds it without a network and fails at the first warning."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs" / "extensions"))

metadata = tomllib.loads((ROOT / "packages" / "mtnlg-data" / "pyproject.toml").read_text("utf-8"))["project"]
project = "MT-NLG"
author = metadata["authors"][0]["name"]
copyright = author  # noqa: A001  (the name that Sphinx reads)

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "commands",
    "measurements",
    "python_reference",
    "repository",
    "timelines",
]
nitpicky = True
exclude_patterns = ["pictures"]
# Links to files outside the site are plain text until the packages' metadata name the home of the repository.
repository_url = metadata.get("urls", {}).get("Repository", "")

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_default_options = {"members": True, "exclude-members": "model_config"}
highlight_language = "text"  # of a fence without a language
smartquotes = False  # which make a dash of the -- before an option
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
# Annotations name types of other libraries and of inner modules, which have no page here.
nitpick_ignore_regex = [("py:(class|obj)", ".*")]

html_theme = "furo"
html_title = "MT-NLG"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs" / "static" / "scorer.js")
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
