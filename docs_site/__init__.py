"""The site of the documentation: pages for zensical, the API reference, and copies for language models.

    python3 dev.py docs              builds the site and serves it on this machine
    python3 dev.py docs --build      only builds it, into .dev/docs/site

`pages` lays out the Markdown that zensical reads, `api` writes the pages of the API reference, `build` runs zensical,
and `copies` writes llms.txt and a Markdown copy of each page. The files in docs/ stay as they are: every link in them
works on GitHub too.
"""
