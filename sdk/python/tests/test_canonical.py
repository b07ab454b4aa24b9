import json
import unittest

from perdure import canonical, durations
from tests import vectors


class CanonicalTest(unittest.TestCase):
    def test_vectors(self):
        rows = vectors.load("canonical.json")
        self.assertGreater(len(rows), 50)
        for row in rows:
            with self.subTest(text=row["text"][:80]):
                if row.get("refused"):
                    with self.assertRaises((ValueError, RecursionError)):
                        canonical.canonical_of_text(row["text"])
                    continue
                text = canonical.canonical_of_text(row["text"])
                self.assertEqual(text, row["canonical"])
                self.assertEqual(canonical.sha(text.encode()), row["digest"])

    def test_values_are_written_as_their_texts(self):
        for row in vectors.load("canonical.json"):
            if row.get("refused"):
                continue
            value = json.loads(row["text"])
            try:
                text = canonical.canonical(value)
            except ValueError:  # a number beyond all doubles is infinite in Python
                self.assertIn("inf", repr(value))
                continue
            with self.subTest(text=row["text"][:80]):
                self.assertEqual(text, row["canonical"])
                self.assertEqual(canonical.dumps(json.loads(text)), text)

    def test_python_prints_some_floats_otherwise(self):
        for value, want in [(1.0, "1"), (1e-06, "0.000001"), (1e-07, "1e-7"), (1e16, "10000000000000000"),
                            (1e21, "1e+21"), (-0.0, "0"), (0.1, "0.1"), (1.5e300, "1.5e+300")]:
            self.assertEqual(canonical.dumps({"a": [value, "1e5"]}), '{"a":[%s,"1e5"]}' % want)

    def test_durations(self):
        for us, want in [(3600000000, "1h0m0s"), (90000000, "1m30s"), (3510000000, "58m30s"), (1000, "1ms"),
                         (1500000, "1.5s"), (0, "0s"), (1, "1µs"), (1500, "1.5ms"), (86400000000, "24h0m0s")]:
            self.assertEqual(durations.text(us), want)
        with self.assertRaises(ValueError):
            durations.microseconds(float("nan"))
        with self.assertRaises(ValueError):
            durations.microseconds(400 * 86400)
