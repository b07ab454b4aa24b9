"""Reads the vectors of the journal, which all libraries share."""

import json
import os

FOLDER = os.environ.get("PERDURE_VECTORS") or os.path.join(os.path.dirname(__file__), "../../../testdata/journal")


def load(name):
    with open(os.path.join(FOLDER, name), encoding="utf-8") as f:
        return json.load(f)


def stories(folder="stories"):
    return sorted(n[:-5] for n in os.listdir(os.path.join(FOLDER, folder)) if n.endswith(".json"))
