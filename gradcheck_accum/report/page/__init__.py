"""What ``verify`` and ``compare`` measured, as one HTML file that needs nothing but itself.

It holds no script, and loads nothing: pictures are SVG in the text of the page, and its policy forbids the rest. Needs
Jinja2 and matplotlib, which are an extra (``gradcheck-accum[report]``).
"""

from __future__ import annotations

from gradcheck_accum.report.page.making import compare_page, verify_page

__all__ = ["compare_page", "verify_page"]
