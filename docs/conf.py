"""The site of the documentation, as ``make docs`` builds it.

The source folder is the root of the repository: README.md, CONTRIBUTING.md and
CHANGELOG.md are pages as they stand, so that links are the same on the site and in a
browser of the repository.
"""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

# Extensions of our own, such as the list of commands.
sys.path.insert(0, str(Path(__file__).parent))

project = "feinsum"
author = "The feinsum developers"
project_copyright = author
version = release = version_of("feinsum")

extensions = [
    "commands",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**"]
exclude_patterns = [".*", "docs/_build", "docs/templates"]
templates_path = [str(Path(__file__).with_name("templates"))]

myst_heading_anchors = 6
# Tests execute the tutorials and compare what they print with what is shown.
nb_execution_mode = "off"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_use_ivar = True
napoleon_custom_sections = ["Complexity", "Rewrite", "Source"]

# Docstrings name attributes by their short names, which several classes have.
suppress_warnings = ["ref.python"]

html_theme = "furo"
html_title = f"feinsum {version}"
# A visitor of the root of the site is sent to the first page.
html_additional_pages = {"index": "redirect.html"}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
