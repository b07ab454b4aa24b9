"""Signatures: of runs (Ed25519, RFC 8032) and of webhooks."""

import base64
import json
import os
import re
import unittest

from perdure import ed25519, webhooks
from perdure.grants import Trust, grants, signed

# RFC 8032, 7.1: public key, message, signature.
RFC = [
    ("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
     "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
     "d25bf5f0595bbe24655141438e7a100b"),
    ("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
     "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
     "387b2eaeb4302aeeb00d291612bb0c00"),
    ("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
     "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
     "4a7c15e9716ed28dc027beceea1ec40a"),
]
PAGE = os.path.join(os.path.dirname(__file__), "../../../docs/security.md")
ORDER = 2**252 + 27742317777372353535851937790883648493


def page_vector():
    with open(PAGE, encoding="utf-8") as f:
        text = re.search(r"```json vector\n(.*?)```", f.read(), re.S).group(1)
    return json.loads(text), text


class SignaturesTest(unittest.TestCase):
    def test_rfc_8032(self):
        for public, message, signature in RFC:
            key, text, value = map(bytes.fromhex, (public, message, signature))
            self.assertTrue(ed25519.verify(key, text, value))
            self.assertFalse(ed25519.verify(key, text + b"x", value))
            for n in (0, 31, 32, 63):
                changed = bytearray(value)
                changed[n] ^= 1
                self.assertFalse(ed25519.verify(key, text, bytes(changed)), n)

    def test_a_scalar_beyond_the_order_is_refused(self):
        key, text, value = map(bytes.fromhex, RFC[1])
        s = int.from_bytes(value[32:], "little") + ORDER
        self.assertFalse(ed25519.verify(key, text, value[:32] + s.to_bytes(32, "little")))
        self.assertFalse(ed25519.verify(key[:31], text, value))
        self.assertFalse(ed25519.verify(b"\xff" * 32, text, value))

    def test_the_vector_of_the_page(self):
        vector, text = page_vector()
        raw = re.search(r'"input": (\{.*\}),', text).group(1)
        answer = json.dumps({"runs": [vector["grant"]]}, ensure_ascii=False)
        answer = answer.replace(json.dumps(vector["grant"]["input"], ensure_ascii=False), raw)
        [(grant, found)] = grants(answer.encode())
        self.assertEqual(found, raw.encode())
        self.assertEqual(signed(grant, found).decode(), vector["canonical"])
        der = bytes.fromhex("302a300506032b6570032100") + base64.b64decode(vector["public_key"])
        pem = "-----BEGIN PUBLIC KEY-----\n%s\n-----END PUBLIC KEY-----\n" % base64.b64encode(der).decode()
        trust = Trust(pem, required=True)
        self.assertTrue(trust.accepts(grant, found))
        self.assertFalse(trust.accepts(grant, found.replace(b"1", b"2")))
        self.assertFalse(trust.accepts({**grant, "kind": "other"}, found))
        unsigned = {k: v for k, v in grant.items() if k != "signature"}
        self.assertFalse(trust.accepts(unsigned, found))
        self.assertTrue(Trust(pem).accepts(unsigned, found))
        self.assertFalse(Trust(pem).accepts({**grant, "signature": {"key_id": "x", "value": "?"}}, found))

    def test_inputs_are_found_as_they_stand(self):
        data = b'{ "x": [1], "runs" : [ {"a":"[{","input": {"b" : "\\u00e9 }", "c":1.0}, "z":1 }, {"input":"q"},{"z":2}]}'
        self.assertEqual([raw for _, raw in grants(data)], [b'{"b":"\\u00e9 }","c":1.0}', b'"q"', b""])
        self.assertEqual(grants(b'{"runs":[]}'), [])
        self.assertEqual(grants(b'{}'), [])


class WebhooksTest(unittest.TestCase):
    SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()

    def test_verify(self):
        headers = {"Webhook-Id": "msg_1", "webhook-timestamp": "1000", "webhook-signature": ""}
        body = b'{"type":"run:completed"}'
        with self.assertRaises(webhooks.NotSigned):
            webhooks.verify(self.SECRET, headers, body, now=1000)
        import hashlib
        import hmac
        value = base64.b64encode(hmac.new(b"0123456789abcdef", b"msg_1.1000." + body, hashlib.sha256).digest()).decode()
        headers["webhook-signature"] = "v1,other v1," + value
        self.assertEqual(webhooks.verify(self.SECRET, headers, body, now=1200), {"type": "run:completed"})
        for wrong_body, now in ((body + b" ", 1000), (body, 1400), (body, 600)):
            with self.assertRaises(webhooks.NotSigned):
                webhooks.verify(self.SECRET, headers, wrong_body, now=now)
