#!/usr/bin/env python3
"""Unpacks the wheel of dist into a folder, for machines without pip: python3 install.py FOLDER.

The folder has to be on Python's path then, such as the site-packages of a virtual environment.
"""

import glob
import os
import sys
import zipfile

here = os.path.dirname(os.path.abspath(__file__))
wheels = glob.glob(os.path.join(here, "dist", "perdure-*.whl"))
if len(sys.argv) != 2 or len(wheels) != 1:
    sys.exit("usage: python3 install.py FOLDER, after make sdks (dist has %d wheels)" % len(wheels))
with zipfile.ZipFile(wheels[0]) as z:
    z.extractall(sys.argv[1])
