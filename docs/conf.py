"""Sphinx's settings of the documentation site, which `make docs` builds without network.

The pages are Markdown that GitHub shows as it is. What Sphinx needs beyond that is added here when a page is read.
"""

import re
from typing import Any

from sphinx.application import Sphinx

PAGE = re.compile(r"^- \[[^\]]+\]\((\w+)\.md\)", re.M)
ANCHOR = re.compile(r'<a id="([^"]+)"></a>`([^`]+)`')
DOTTED_LINK = re.compile(r"(\]\(settings\.md#)([\w.]+)\)")
OUTSIDE = re.compile(r"\]\((\.\./[^)#]+\.md)(?:#[^)]*)?\)")
FILE_LINK = re.compile(r"\[\w+\.md\](\(\w+\.md(?:#[\w-]+)?\))")
SECTION = re.compile(r"(Raises|Returns|Shapes|Source|Units): (.*)")

project = "The probe lab"
author = copyright = "The probe lab's contributors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"top_of_page_buttons": []}
exclude_patterns = ["_static"]

myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4  # as GitHub makes them, so that links to headings work in both

default_role = "code"
highlight_language = "text"
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80


def list_parts(text: str) -> str:
    """Write a table of contents for each part of index.md: a heading of the second level and its list of pages."""
    directives = []
    for part in text.split("\n## ")[1:]:
        pages = "\n".join(PAGE.findall(part))
        if pages:
            caption = part.partition("\n")[0]
            if caption == "Reference":
                pages += "\nIndex of the Python API <genindex>"
            directives.append(f"```{{toctree}}\n:caption: {caption}\n:hidden:\n\n{pages}\n```\n")
    return "\n".join(directives)


def adapt_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Add tables of contents, make targets of HTML anchors, link other files as downloads and pages by their titles."""
    text = ANCHOR.sub(lambda match: f"[`{match[2]}`]{{#{match[1].replace('.', '-')}}}", source[0])
    text = DOTTED_LINK.sub(lambda match: f"{match[1]}{match[2].replace('.', '-')})", text)
    text = OUTSIDE.sub(r"](path:\1)", text)
    text = FILE_LINK.sub(r"[]\1", text)
    source[0] = f"{text}\n{list_parts(text)}" if name == "index" else text


def escape_stars(text: str) -> str:
    """Escape the asterisks outside code, as those of a pattern of files."""
    parts = text.split("`")
    parts[::2] = [part.replace("*", r"\*") for part in parts[::2]]
    return "`".join(parts)


def adapt_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Write the sections of a docstring, such as `Raises: ...`, as paragraphs, and its example as code."""
    written: list[str] = []
    in_example = in_section = False
    for line in lines:
        match = SECTION.fullmatch(line)
        if in_example:
            written.append(line)
        elif line == "Example:":
            in_example = True
            written += ["", ".. code-block:: python", ""]
        elif match:
            in_section = True
            written += ["", f"**{match[1]}:** {escape_stars(match[2])}"]
        else:
            in_section = in_section and line.strip() != ""  # further lines of a section are indented
            text = escape_stars(line)
            written.append(text.strip() if in_section else text)
    lines[:] = written


def setup(app: Sphinx) -> None:
    """Register the changes of pages and docstrings."""
    app.connect("source-read", adapt_page)
    app.connect("autodoc-process-docstring", adapt_docstring)
