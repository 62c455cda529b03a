"""For `python3 FILE.pyz`, and `python3 -m hook` in the source tree; the file's first line goes to `start` by itself."""

from hook import start  # noqa: F401  importing it is running it
