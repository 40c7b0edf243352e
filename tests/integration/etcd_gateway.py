"""What stands in an etcd, asked through its gateway for JSON."""
import base64
import json
import urllib.request


class Gateway:
    def __init__(self, address):
        self.address = address

    def ask(self, call, **request):
        url = urllib.request.Request(f"http://{self.address}/v3/{call}", json.dumps(request).encode())
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)

    def pair(self, key):
        """The key with its value and lease, as etcd encodes them; None: there is none."""
        pairs = self.ask("kv/range", key=base64.b64encode(key.encode()).decode()).get("kvs", [])
        return pairs[0] if pairs else None
