"""A hub on this machine that speaks what is used of the Hugging Face Hub, honestly or as badly as a test says."""

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Hub:
    """Models by organisation/name, each a dictionary of files.

    Attributes:
        listed: what the listing says, changed by a test before it is sent.
        served: name of a file → what is sent in its place.
        cuts: after how many bytes to cut off the next files.
        failures: statuses of the next answers.
        endless: whether files go on for ever, without a length.
        log: method and path of every request, and its Authorization.
    """

    def __init__(self):
        self.models = {}
        self.listed = lambda listing: listing
        self.served = {}
        self.cuts, self.failures = [], []
        self.endless = False
        self.elsewhere = None
        self.log = []
        self._uploads = {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()

    def commit(self, name):
        return hashlib.sha1(repr(sorted(self.models[name].items())).encode()).hexdigest()

    def fetched(self):
        """Names of the files that were asked for."""
        return [path.rpartition("/")[2] for method, path, _ in self.log if method == "GET" and "/resolve/" in path]

    def _handler(self):
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"

            def log_message(self, *arguments):
                pass

            def answer(self):
                hub.log.append((self.command, self.path, self.headers.get("Authorization")))
                if hub.failures:
                    return self.send_json({"error": "no"}, hub.failures.pop(0))
                path = unquote(urlsplit(self.path).path)
                for pattern, method in ROUTES:
                    if found := re.fullmatch(pattern, f"{self.command} {path}"):
                        return getattr(hub, method)(self, **found.groupdict())
                return self.send_json({"error": "no such route"}, 404)

            do_GET = do_HEAD = do_POST = do_PUT = answer

            def body(self):
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))

            def send_json(self, content, status=200):
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler

    def _list(self, request, name, revision):
        if name not in self.models or revision not in ("main", self.commit(name)):
            return request.send_json({"error": "not found"}, 404)
        siblings = []
        for file, content in self.models[name].items():
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry = {"rfilename": file, "size": len(content), "blobId": blob}
            if file.endswith((".safetensors", ".bin")):
                entry["lfs"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 1}
            siblings.append(entry)
        listing = {"id": name, "modelId": name, "sha": self.commit(name), "siblings": siblings}
        return request.send_json(self.listed(listing))

    def _serve(self, request, name, commit, file):
        if self.elsewhere and not request.headers["Host"].startswith(self.elsewhere):
            request.send_response(302)
            request.send_header("Location", f"http://{self.elsewhere}:{self._http.server_port}{request.path}")
            request.send_header("Content-Length", "0")
            return request.end_headers()
        content = self.served.get(file, self.models.get(name, {}).get(file))
        if content is None or commit != self.commit(name):
            return request.send_json({"error": "not found"}, 404)
        start = int(request.headers.get("Range", "bytes=0-")[6:-1])
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if not self.endless:
            request.send_header("Content-Length", str(len(content) - start))
        request.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        request.end_headers()
        cut = self.cuts.pop(0) if self.cuts else None
        request.wfile.write(content[start : None if cut is None else start + cut])
        try:
            while self.endless:
                request.wfile.write(bytes(1 << 16))
        except OSError:
            # whoever asked has had enough
            pass
        return None

    def _create(self, request):
        asked = json.loads(request.body())
        name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
        self.models.setdefault(name, {})
        return request.send_json({"url": f"{self.url}/{name}"})

    def _validate(self, request):
        return request.send_json({"errors": [], "warnings": []})

    def _preupload(self, request, name, revision):
        files = [
            {"path": file["path"], "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular"}
            for file in json.loads(request.body())["files"]
        ]
        return request.send_json({"files": [{**file, "shouldIgnore": False} for file in files]})

    def _batch(self, request, name):
        objects = json.loads(request.body())["objects"]
        actions = {"upload": {"href": f"{self.url}/upload/"}}
        for entry in objects:
            entry["actions"] = {"upload": {"href": f"{actions['upload']['href']}{entry['oid']}"}}
        return request.send_json({"transfer": "basic", "objects": objects})

    def _upload(self, request, oid):
        content = request.body()
        self._uploads[hashlib.sha256(content).hexdigest()] = content
        return request.send_json({})

    def _commit(self, request, name, revision):
        files = dict(self.models[name])
        for line in request.body().decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self._uploads[value["oid"]]
        self.models[name] = files
        commit = self.commit(name)
        return request.send_json(
            {"success": True, "commitOid": commit, "commitUrl": f"{self.url}/{name}/commit/{commit}"}
        )


ROUTES = [
    (r"GET /api/models/(?P<name>[^/]+/[^/]+)/revision/(?P<revision>.+)", "_list"),
    (r"GET /(?P<name>[^/]+/[^/]+)/resolve/(?P<commit>[^/]+)/(?P<file>.+)", "_serve"),
    (r"POST /api/repos/create", "_create"),
    (r"POST /api/validate-yaml", "_validate"),
    (r"POST /api/models/(?P<name>[^/]+/[^/]+)/preupload/(?P<revision>.+)", "_preupload"),
    (r"POST /(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch", "_batch"),
    (r"PUT /upload/(?P<oid>.+)", "_upload"),
    (r"POST /api/models/(?P<name>[^/]+/[^/]+)/commit/(?P<revision>.+)", "_commit"),
]
