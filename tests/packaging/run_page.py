"""Run the Python snippets of pages as a reader pastes them: in order, in one namespace, where only their packages are.

    python tests/packaging/run_page.py EMPTY_FOLDER docs/how-to/write-tools.md docs/how-to/approve-calls.md

Each page runs in a process and a folder of its own. The processes are forked after toolbus, and pytest where it is
installed, have been imported, since an import takes longer than most pages. At the end, it names the pages that have failed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.pages import run_snippets


def run_apart(page: Path, folder: Path) -> bool:
    """Run a page in a process and a folder of its own, and return whether all of its snippets have run."""
    folder.mkdir()
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    status = 1
    try:
        run_snippets(page, folder)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def import_what_pages_need() -> None:
    """Import what most pages import, and pytest if it is installed."""
    importlib.import_module("toolbus.runtime")
    with contextlib.suppress(ImportError):
        importlib.import_module("pytest")
    gc.collect()
    gc.freeze()  # so that a collection in a forked process copies no page of memory


if __name__ == "__main__":
    import_what_pages_need()
    empty, *pages = (Path(argument).resolve() for argument in sys.argv[1:])
    failed = [page for i, page in enumerate(pages) if not run_apart(page, empty / str(i))]
    sys.exit("\n".join(f"{page} failed" for page in failed) or 0)
