"""A receiver of webhooks: Python >= 3.9, standard library only.

    PERDURE_WEBHOOK_SECRET=whsec_... python3 examples/webhook/receiver.py [PORT]
"""
import base64, hashlib, hmac, http.server, json, os, sys, time

KEY = base64.b64decode(os.environ["PERDURE_WEBHOOK_SECRET"].removeprefix("whsec_"))


def verify(headers, body):
    """Says whether a message is from Perdure, and from the last five minutes."""
    when, sent = headers.get("webhook-timestamp", ""), headers.get("webhook-signature", "")
    if not when.isdecimal() or abs(time.time() - int(when)) > 300:
        return False
    signed = f"{headers.get('webhook-id', '')}.{when}.".encode() + body
    want = "v1," + base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    return any(hmac.compare_digest(want.encode(), s.encode()) for s in sent.split(" "))


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(min(int(self.headers.get("content-length", 0)), 1 << 16))
        good = verify(self.headers, body)
        if good:
            message = json.loads(body)
            print(message["type"], message["data"].get("run_id", ""), flush=True)
        self.send_response(204 if good else 401)
        self.end_headers()

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8080), Receiver)
print("listening on", server.server_port, flush=True)
server.serve_forever()
