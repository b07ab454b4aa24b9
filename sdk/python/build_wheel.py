#!/usr/bin/env python3
"""Makes the wheel of this package with the standard library alone, and is the build backend of pyproject.toml.

python3 build_wheel.py FOLDER writes it there, and prints its name. The same files give the same bytes.
"""

import base64
import hashlib
import os
import re
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))


def text_of(*path):
    with open(os.path.join(HERE, *path), encoding="utf-8") as f:
        return f.read()


def version():
    return re.search(r'__version__ = "([^"]+)"', text_of("perdure", "__init__.py")).group(1)


def metadata():
    return ("Metadata-Version: 2.1\nName: perdure\nVersion: %s\nSummary: Durable agents, workers and a client of Perdure\n"
            "License: Apache-2.0\nRequires-Python: >=3.10\nTyping :: Typed\n"
            "Description-Content-Type: text/markdown\n\n%s" % (version(), text_of("README.md"))).replace(
                "Typing :: Typed\n", "Classifier: Typing :: Typed\n")


def license_text():
    own = os.path.join(HERE, "LICENSE")
    path = own if os.path.exists(own) else os.path.join(HERE, "..", "..", "LICENSE")
    with open(path, encoding="utf-8") as f:
        return f.read()


def files():
    out = {}
    for folder, folders, names in os.walk(os.path.join(HERE, "perdure")):
        folders[:] = sorted(f for f in folders if f != "__pycache__")
        for name in sorted(names):
            path = os.path.join(folder, name)
            with open(path, "rb") as f:
                out[os.path.relpath(path, HERE).replace(os.sep, "/")] = f.read()
    info = "perdure-%s.dist-info/" % version()
    out[info + "METADATA"] = metadata().encode()
    out[info + "WHEEL"] = b"Wheel-Version: 1.0\nGenerator: perdure\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    out[info + "licenses/LICENSE"] = license_text().encode()
    record = "".join("%s,sha256=%s,%d\n" % (
        name, base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), len(data))
        for name, data in out.items())
    out[info + "RECORD"] = (record + info + "RECORD,,\n").encode()
    return out


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    os.makedirs(wheel_directory, exist_ok=True)
    name = "perdure-%s-py3-none-any.whl" % version()
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as z:
        for path, data in files().items():
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            z.writestr(entry, data)
    return name


if __name__ == "__main__":
    print(build_wheel(sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "dist")))
