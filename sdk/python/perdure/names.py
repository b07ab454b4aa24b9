"""Names of steps, kinds, signals and branches, and the keys that are made of them."""

from __future__ import annotations

import re
import unicodedata

MAX_NAME = 170
MAX_VERSION_NAME = 200
_branch_end = re.compile(r"#\d+//")
_others = frozenset("_.:/#@+- ")
_common = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/#@+ -]*\Z")


def fault(name: object, most: int = MAX_NAME, taken: int = 0, underscore: bool = False) -> str:
    """Says what is wrong with a name, or returns an empty text. taken bytes belong to its branch."""
    if not isinstance(name, str):
        return "is a %s and not a text" % type(name).__name__
    if not name:
        return "is empty"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "has half of a surrogate pair"
    if size + taken > most:
        return "has %d bytes%s; at most %d are allowed" % (size + taken, " with its branch" if taken else "", most)
    if ".." in name or name.endswith(" "):
        return "has '..', or ends with a space"
    if "#" in name and _branch_end.search(name):
        return "has '#', digits and '//' in a row, which is the end of a branch and in no name"
    if underscore and name[0] == "_" or _common.match(name):
        pass
    elif not _is_letter(name[0]):
        return "does not begin with a letter or a digit"
    for c in name:
        if c not in _others and not _is_letter(c):
            return "has %r; letters, digits, _ . : / # @ + - and spaces are allowed" % c
    return ""


def _is_letter(c: str) -> bool:
    return unicodedata.category(c)[0] in "LN"


def use(prefix: str, name: str, number: int) -> str:
    """Returns the key of a use of a name. A prefix of the library stays in front of the branch."""
    return "%s%s#%d" % (prefix, name, number)


def branch_of(key: str) -> str:
    """Returns the branch of a key: the part up to its last '#', digits and '//'."""
    at = 0
    for m in _branch_end.finditer(key):
        at = m.end()
    return key[:at]
