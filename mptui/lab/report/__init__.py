"""Reports: a page on one run, or several beside each other, as HTML or Markdown."""
